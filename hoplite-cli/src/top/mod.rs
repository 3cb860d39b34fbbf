mod cluster;
mod screen;
mod traffic;

use std::io::{self, IsTerminal};
use std::ops::ControlFlow;
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use self::cluster::Cluster;
use self::screen::Screen;
use crate::arguments::{StoreArguments, parse_duration};

const SHORTEST_INTERVAL: Duration = Duration::from_millis(250);
const KEY_TIMEOUT: Duration = Duration::from_millis(100);
const MAX_KEYS: usize = 64;

const KEYS: &str = "Keys:
  1 to 7, Tab      nodes, objects, transfers, reduces, links, directory, problems
  up down, j k, PgUp PgDn, Home End    move; the chosen node shows its network cards, if it has several
  s                sort the nodes by the next column
  /                show only ids or names that begin with a text; Enter ends it, Esc clears it
  n b              next page of objects, and back
  Enter            the tree of the copies of an object, and who was told to pull it from whom; Esc goes back
  p, Space         pause
  q, Ctrl-C        end

Colours are left out if NO_COLOR is set. If no shard of the directory answers, only this node's store is shown.";

#[derive(Debug, clap::Args)]
#[command(after_help = KEYS)]
pub(crate) struct Arguments {
    /// Interval of updates
    #[arg(long, value_name = "INTERVAL", default_value = "2s", value_parser = parse_duration)]
    interval: Duration,
}

pub(crate) async fn run(store: &StoreArguments, arguments: Arguments) -> anyhow::Result<()> {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    ensure!(
        io::stdout().is_terminal() && io::stdin().is_terminal() && !is_dumb,
        "`hoplite top` needs an interactive terminal; `hoplite status --watch` writes to anything"
    );
    let cluster = Cluster::connect(store).await?;
    let mut signals = Signals::new().context("cannot wait for signals")?;
    let has_colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    // This also restores the terminal after a panic.
    let mut terminal = ratatui::try_init().context("cannot take over the terminal")?;
    let interval = arguments.interval.max(SHORTEST_INTERVAL);
    let ended =
        show(&mut terminal, Screen::new(has_colours), cluster, interval, &mut signals).await;
    ratatui::try_restore().context("cannot give the terminal back")?;
    ended
}

async fn show(
    terminal: &mut DefaultTerminal,
    mut screen: Screen,
    cluster: Cluster,
    interval: Duration,
    signals: &mut Signals,
) -> anyhow::Result<()> {
    let mut keys = keys().context("cannot read the keyboard")?;
    let (questions, asked) = mpsc::channel(1);
    let (answers, mut answered) = mpsc::channel(1);
    let mut asking = tokio::spawn(cluster.serve(asked, answers));
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        terminal.draw(|frame| screen.draw(frame)).context("cannot draw")?;
        let outcome = tokio::select! {
            key = keys.recv() => match key {
                Some(event) => screen.handle(&event),
                None => ControlFlow::Break(()),
            },
            Some(answer) = answered.recv() => {
                screen.take(answer);
                ControlFlow::Continue(None)
            }
            _ = ticks.tick() => ControlFlow::Continue(screen.due()),
            () = signals.next() => ControlFlow::Break(()),
            ended = &mut asking => return ended.context("the task that queries the cluster has ended"),
        };
        match outcome {
            ControlFlow::Break(()) => return Ok(()),
            // While another query is open, drops this query; the next tick repeats it.
            ControlFlow::Continue(Some(question)) => drop(questions.try_send(question)),
            ControlFlow::Continue(None) => {}
        }
    }
}

/// Reads the keyboard in a thread, which ends soon after the receiver is dropped.
fn keys() -> io::Result<mpsc::Receiver<Event>> {
    let (sender, receiver) = mpsc::channel(MAX_KEYS);
    thread::Builder::new().name("keys".to_owned()).spawn(move || {
        while !sender.is_closed() {
            match event::poll(KEY_TIMEOUT) {
                Ok(false) => {}
                Ok(true) => {
                    let Ok(event) = event::read() else { return };
                    if sender.blocking_send(event).is_err() {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
    })?;
    Ok(receiver)
}

struct Signals([tokio::signal::unix::Signal; 3]);

impl Signals {
    fn new() -> io::Result<Self> {
        let [one, two, three] =
            [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
        Ok(Self([one?, two?, three?]))
    }

    async fn next(&mut self) {
        let [one, two, three] = &mut self.0;
        tokio::select! {
            _ = one.recv() => {}
            _ = two.recv() => {}
            _ = three.recv() => {}
        }
    }
}
