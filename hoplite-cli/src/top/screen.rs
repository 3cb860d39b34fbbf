//! What is shown, and what the keys do. Draws from what was answered last; asks nothing itself.

use std::cmp::Reverse;
use std::ops::ControlFlow;
use std::time::Duration;

use hoplite_client::{LocationState, Locations, ObjectId, Retention};
use hoplite_proto::v1::status_reply::Node;
use ratatui::Frame;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Table, TableState};

use super::cluster::{More, Question, Snapshot};
use crate::output::size;

/// Longest text to search for: that of an id.
const MAX_PREFIX_CHARS: usize = 255;
/// Width of the bars.
const BAR: usize = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum View {
    Nodes,
    Objects,
    Directory,
}

const VIEWS: [(View, &str); 3] =
    [(View::Nodes, "Nodes"), (View::Objects, "Objects"), (View::Directory, "Directory")];

/// What nodes are sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Name,
    Memory,
    Receiving,
    Sending,
}

const ORDERS: [(Order, &str); 4] = [
    (Order::Name, "name"),
    (Order::Memory, "memory"),
    (Order::Receiving, "receiving"),
    (Order::Sending, "sending"),
];

/// The state of the screen.
#[derive(Debug)]
pub(super) struct Screen {
    has_colours: bool,
    view: View,
    order: Order,
    is_paused: bool,
    is_typing: bool,
    prefix: String,
    /// Where the pages of objects begin, up to the one that is shown.
    pages: Vec<Vec<u8>>,
    /// The object that is looked at.
    object: Option<ObjectId>,
    latest: Option<Snapshot>,
    trouble: Option<String>,
    rows: TableState,
    /// How many rows are there, and fit.
    count: usize,
    height: usize,
}

impl Screen {
    pub(super) fn new(has_colours: bool) -> Self {
        Self {
            has_colours,
            view: View::Nodes,
            order: Order::Name,
            is_paused: false,
            is_typing: false,
            prefix: String::new(),
            pages: vec![Vec::new()],
            object: None,
            latest: None,
            trouble: None,
            rows: TableState::default().with_selected(0),
            count: 0,
            height: 1,
        }
    }

    /// What to ask now that it is time to.
    pub(super) fn due(&self) -> Option<Question> {
        (!self.is_paused).then(|| self.question())
    }

    fn question(&self) -> Question {
        match (self.view, &self.object) {
            (View::Objects, Some(id)) => Question::Object(id.clone()),
            (View::Objects, None) => Question::Objects {
                prefix: self.prefix.clone().into_bytes(),
                after: self.pages.last().cloned().unwrap_or_default(),
            },
            (View::Nodes | View::Directory, _) => Question::Nodes,
        }
    }

    /// Takes an answer.
    pub(super) fn take(&mut self, answer: Result<Snapshot, String>) {
        match answer {
            Ok(mut snapshot) => {
                // An answer to a question before keeps what is shown.
                if let (More::Nothing, Some(before)) = (&snapshot.more, self.latest.take()) {
                    snapshot.more = before.more;
                }
                self.latest = Some(snapshot);
                self.trouble = None;
            }
            Err(why) => self.trouble = Some(why),
        }
    }

    /// Does what a key asks for: a break ends it all, a question is to be asked at once.
    pub(super) fn handle(&mut self, event: &Event) -> ControlFlow<(), Option<Question>> {
        let Event::Key(KeyEvent {
            code, modifiers, kind: KeyEventKind::Press | KeyEventKind::Repeat, ..
        }) = event
        else {
            return ControlFlow::Continue(None);
        };
        if modifiers.contains(KeyModifiers::CONTROL) {
            return match code {
                KeyCode::Char('c' | 'd') => ControlFlow::Break(()),
                _ => ControlFlow::Continue(None),
            };
        }
        if self.is_typing {
            return ControlFlow::Continue(self.type_key(*code));
        }
        let before = self.question();
        match code {
            KeyCode::Char('q') => return ControlFlow::Break(()),
            KeyCode::Esc if self.object.is_some() => self.object = None,
            KeyCode::Esc => self.search(""),
            KeyCode::Char('1') => self.open(View::Nodes),
            KeyCode::Char('2') => self.open(View::Objects),
            KeyCode::Char('3') => self.open(View::Directory),
            KeyCode::Tab => {
                let at = VIEWS.iter().position(|(view, _)| *view == self.view).unwrap_or(0);
                self.open(VIEWS[(at + 1) % VIEWS.len()].0);
            }
            KeyCode::Char('s') => {
                let at = ORDERS.iter().position(|(order, _)| *order == self.order).unwrap_or(0);
                self.order = ORDERS[(at + 1) % ORDERS.len()].0;
            }
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('n') => self.next_page(),
            KeyCode::Char('b') if self.pages.len() > 1 => {
                self.pages.pop();
                self.rows.select(Some(0));
            }
            KeyCode::Enter => self.enter(),
            KeyCode::Down | KeyCode::Char('j') => self.move_by(1),
            KeyCode::Up | KeyCode::Char('k') => self.move_by(-1),
            KeyCode::PageDown => self.move_by(isize::try_from(self.height).unwrap_or(1)),
            KeyCode::PageUp => self.move_by(-isize::try_from(self.height).unwrap_or(1)),
            KeyCode::Home => self.rows.select(Some(0)),
            KeyCode::End => self.rows.select(Some(self.count.saturating_sub(1))),
            _ => {}
        }
        let now = self.question();
        ControlFlow::Continue((now != before).then_some(now))
    }

    fn type_key(&mut self, code: KeyCode) -> Option<Question> {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.search("");
            }
            KeyCode::Backspace => {
                let mut text = self.prefix.clone();
                text.pop();
                self.search(&text);
            }
            KeyCode::Char(character) if self.prefix.len() + character.len_utf8() <= MAX_PREFIX_CHARS => {
                let text = format!("{}{character}", self.prefix);
                self.search(&text);
            }
            _ => {}
        }
        (self.view == View::Objects).then(|| self.question())
    }

    fn search(&mut self, text: &str) {
        text.clone_into(&mut self.prefix);
        self.pages = vec![Vec::new()];
        self.object = None;
        self.rows.select(Some(0));
    }

    fn open(&mut self, view: View) {
        self.view = view;
        self.object = None;
        self.rows.select(Some(0));
    }

    fn next_page(&mut self) {
        if let (View::Objects, Some(More::Objects(_, Some(next)))) =
            (self.view, self.latest.as_ref().map(|latest| &latest.more))
        {
            self.pages.push(next.as_bytes().to_vec());
            self.rows.select(Some(0));
        }
    }

    fn enter(&mut self) {
        let Some(More::Objects(objects, _)) = self.latest.as_ref().map(|latest| &latest.more) else { return };
        if self.view == View::Objects && self.object.is_none() {
            let chosen = self.rows.selected().and_then(|row| objects.get(row));
            self.object = chosen.map(|object| object.id.clone());
            self.rows.select(Some(0));
        }
    }

    fn move_by(&mut self, rows: isize) {
        let at = self.rows.selected().unwrap_or(0).saturating_add_signed(rows);
        self.rows.select(Some(at.min(self.count.saturating_sub(1))));
    }

    fn style(&self, colour: Color) -> Style {
        if self.has_colours { Style::new().fg(colour) } else { Style::new() }
    }

    /// Draws everything.
    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let [head, facts, body, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(2),
            Constraint::Min(1),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let tabs = VIEWS.iter().enumerate().map(|(number, (view, name))| {
            let style =
                if *view == self.view { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
            Span::styled(format!(" {} {name} ", number + 1), style)
        });
        frame.render_widget(Line::from_iter(tabs), head);
        frame.render_widget(Paragraph::new(self.facts()), facts);
        self.height = usize::from(body.height.saturating_sub(1)).max(1);
        let latest = self.latest.take();
        if let Some(snapshot) = &latest {
            match (self.view, &snapshot.more) {
                (View::Nodes, _) => self.draw_nodes(frame, body, snapshot),
                (View::Directory, _) => self.draw_directory(frame, body, snapshot),
                (View::Objects, More::Object(description)) if self.object.is_some() => {
                    self.draw_object(frame, body, description);
                }
                (View::Objects, More::Objects(objects, _)) if self.object.is_none() => {
                    self.draw_objects(frame, body, objects);
                }
                (View::Objects, _) => {}
            }
        }
        self.latest = latest;
        frame.render_widget(self.foot(), foot);
    }

    fn foot(&self) -> Line<'static> {
        if let Some(trouble) = &self.trouble {
            return Line::styled(trouble.clone(), self.style(Color::Red).add_modifier(Modifier::BOLD));
        }
        if self.is_typing || !self.prefix.is_empty() {
            return Line::raw(format!(
                "/{}{}",
                self.prefix,
                if self.is_typing { "_" } else { "   Esc clears it" }
            ));
        }
        let state = if self.is_paused { "PAUSED  " } else { "" };
        let keys = match (self.view, &self.object) {
            (View::Nodes, _) => format!("s sort (by {})  / name", self.order_name()),
            (View::Objects, None) => "Enter look at  n next page  b back  / id".to_owned(),
            (View::Objects, Some(_)) => "Esc back".to_owned(),
            (View::Directory, _) => String::new(),
        };
        Line::styled(
            format!("{state}q end  Tab view  p pause  {keys}"),
            Style::new().add_modifier(Modifier::DIM),
        )
    }

    fn order_name(&self) -> &'static str {
        ORDERS.iter().find(|(order, _)| *order == self.order).map_or("", |(_, name)| name)
    }

    fn facts(&self) -> Vec<Line<'static>> {
        let Some(Snapshot { store, directory, .. }) = &self.latest else {
            return vec![Line::raw("asking ...")];
        };
        let used = store.capacity_bytes - store.free_bytes.min(store.capacity_bytes);
        let own = format!(
            "{} of cluster {}: {} of {} in use, {} clients, {} pulls, {} reduces",
            store.node,
            store.cluster,
            size(used),
            size(store.capacity_bytes),
            store.clients,
            store.pulls,
            store.reduces
        );
        let all = match directory {
            Ok(reply) => {
                let loads = || reply.nodes.iter().filter_map(|node| node.load.as_ref());
                let rate = loads().map(|load| load.receive_rate).fold(0, u64::saturating_add);
                Line::raw(format!(
                    "directory up {}: {} nodes, {} objects, {} transfers, {} wait, {}/s received",
                    humantime::format_duration(Duration::from_secs(reply.uptime_ms / 1000)),
                    reply.nodes.iter().filter(|node| node.connected).count(),
                    reply.objects,
                    reply.grants,
                    reply.waiting_queries,
                    size(rate),
                ))
            }
            Err(why) => Line::styled(format!("only this node is shown: {why}"), self.style(Color::Yellow)),
        };
        vec![Line::raw(own), all]
    }

    fn table<'a>(
        &mut self,
        frame: &mut Frame<'_>,
        area: Rect,
        header: Row<'a>,
        rows: Vec<Row<'a>>,
        widths: Vec<Constraint>,
    ) {
        self.count = rows.len();
        if self.rows.selected().is_none_or(|row| row >= self.count) {
            self.rows.select(Some(self.count.saturating_sub(1)));
        }
        let table = Table::new(rows, widths)
            .header(header.style(Style::new().add_modifier(Modifier::BOLD)))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        frame.render_stateful_widget(table, area, &mut self.rows);
    }

    fn draw_nodes(&mut self, frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot) {
        let own;
        let nodes = match &snapshot.directory {
            Ok(reply) => &reply.nodes,
            Err(_) => {
                own = vec![own_node(snapshot)];
                &own
            }
        };
        let mut nodes: Vec<&Node> = nodes.iter().filter(|node| node.node.starts_with(&self.prefix)).collect();
        let load =
            |node: &Node, what: fn(&hoplite_proto::v1::LoadReport) -> u64| node.load.as_ref().map_or(0, what);
        match self.order {
            Order::Name => {}
            Order::Memory => nodes.sort_by_key(|node| {
                Reverse(load(node, |load| load.capacity_bytes.saturating_sub(load.free_bytes)))
            }),
            Order::Receiving => nodes.sort_by_key(|node| Reverse(load(node, |load| load.receive_rate))),
            Order::Sending => nodes.sort_by_key(|node| Reverse(load(node, |load| load.send_rate))),
        }
        let rows = nodes.iter().map(|node| {
            let style = if node.connected { Style::new() } else { self.style(Color::Red) };
            let mut labels: Vec<String> =
                node.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
            labels.sort_unstable();
            let state = if node.connected { labels.join(" ") } else { "away".to_owned() };
            let Some(load) = &node.load else {
                return Row::new([
                    plain(&node.node),
                    "no data".to_owned(),
                    String::new(),
                    String::new(),
                    String::new(),
                    String::new(),
                    String::new(),
                    plain(&state),
                ])
                .style(style);
            };
            let used = load.capacity_bytes.saturating_sub(load.free_bytes);
            Row::new([
                plain(&node.node),
                bar(used, load.capacity_bytes),
                size(used),
                size(load.capacity_bytes),
                rate(load.receive_rate),
                rate(load.send_rate),
                load.copies.to_string(),
                plain(&state),
            ])
            .style(style)
        });
        let rows = rows.collect();
        let header =
            Row::new(["NODE", "MEMORY", "IN USE", "SIZE", "RECEIVING", "SENDING", "COPIES", "LABELS"]);
        let widths = [24, 20, 11, 11, 13, 13, 8].map(Constraint::Length);
        let widths = widths.into_iter().chain([Constraint::Min(8)]).collect();
        self.table(frame, area, header, rows, widths);
    }

    fn draw_objects(&mut self, frame: &mut Frame<'_>, area: Rect, objects: &[Locations]) {
        let rows = objects.iter().map(|object| {
            let count = |is: fn(LocationState) -> bool| {
                object.locations.iter().filter(|location| is(location.state)).count().to_string()
            };
            let summary = object.object.as_ref();
            let pinned = object.locations.iter().find(|location| location.retention == Retention::Pinned);
            let is_lost = summary.is_some_and(|summary| summary.lost);
            Row::new([
                object.id.readable(),
                summary.map_or_else(String::new, |summary| size(summary.size_bytes)),
                count(|state| state == LocationState::Complete),
                count(|state| state != LocationState::Complete),
                if is_lost {
                    "lost".to_owned()
                } else {
                    pinned.map_or_else(String::new, |at| at.node.to_string())
                },
            ])
        });
        let rows = rows.collect();
        let header = Row::new(["OBJECT", "SIZE", "COMPLETE", "PARTIAL", "PINNED AT"]);
        let widths = vec![
            Constraint::Min(20),
            Constraint::Length(11),
            Constraint::Length(9),
            Constraint::Length(8),
            Constraint::Length(24),
        ];
        self.table(frame, area, header, rows, widths);
    }

    fn draw_object(&mut self, frame: &mut Frame<'_>, area: Rect, description: &hoplite_client::Description) {
        let latest = |node: &str| description.grants.iter().rev().find(|grant| grant.receiver == node);
        let rows = description.locations.locations.iter().map(|location| {
            let grant = latest(location.node.as_str());
            let from = location.pulling_from.as_ref().map(ToString::to_string);
            Row::new([
                location.node.to_string(),
                format!("{:?}", location.state).to_lowercase(),
                from.or_else(|| grant.map(|grant| plain(&grant.sender))).unwrap_or_default(),
                grant.map_or_else(String::new, |grant| plain(&grant.reason)),
                grant.map_or_else(String::new, |grant| plain(grant.outcome.as_deref().unwrap_or("running"))),
            ])
        });
        let rows = rows.collect();
        let header = Row::new(["COPY AT", "STATE", "FROM", "WHY", "OUTCOME"]);
        let widths = [24, 10, 24, 24, 20].map(Constraint::Length).to_vec();
        let [title, body] = Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(area);
        let id = description.locations.id.readable();
        let bytes = description.locations.object.as_ref().map_or(0, |object| object.size_bytes);
        frame.render_widget(format!("{id}, {}, {} wait", size(bytes), description.waiting_receivers), title);
        self.table(frame, body, header, rows, widths);
    }

    fn draw_directory(&mut self, frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot) {
        let rows = snapshot.store.shards.iter().map(|shard| {
            let style = if shard.connected { Style::new() } else { self.style(Color::Red) };
            Row::new([
                plain(&shard.address),
                if shard.connected { "up" } else { "down" }.to_owned(),
                shard.objects.to_string(),
                size(shard.inline_bytes),
                shard.nodes.to_string(),
                shard.waiting_queries.to_string(),
            ])
            .style(style)
        });
        let rows = rows.collect();
        let header = Row::new(["SHARD", "SESSION", "OBJECTS", "INLINE", "NODES", "WAITING"]);
        let widths = [32, 8, 10, 11, 8, 8].map(Constraint::Length).to_vec();
        self.table(frame, area, header, rows, widths);
    }
}

/// This node, as the directory would tell it.
fn own_node(Snapshot { store, .. }: &Snapshot) -> Node {
    let load = hoplite_proto::v1::LoadReport {
        capacity_bytes: store.capacity_bytes,
        free_bytes: store.free_bytes,
        copies: store.copies,
        ..Default::default()
    };
    Node { node: store.node.clone(), connected: true, load: Some(load), ..Node::default() }
}

/// A text of a peer, without what would disturb the terminal.
fn plain(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { '?' } else { character }).collect()
}

fn rate(bytes: u64) -> String {
    if bytes == 0 { "-".to_owned() } else { format!("{}/s", size(bytes)) }
}

/// A part of a whole, as a bar that needs no colour.
fn bar(some: u64, all: u64) -> String {
    let share = if all == 0 { 0.0 } else { (some as f64 / all as f64).clamp(0.0, 1.0) };
    let full = (share * (BAR - 2) as f64).round() as usize;
    format!("[{}{}]", "|".repeat(full), " ".repeat(BAR - 2 - full))
}

#[cfg(test)]
mod tests {
    use hoplite_client::NodeStatus;
    use hoplite_proto::v1::{LoadReport, StatusReply};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn node(name: &str, free_bytes: u64, receive_rate: u64) -> Node {
        let load = LoadReport { capacity_bytes: 1 << 30, free_bytes, receive_rate, ..LoadReport::default() };
        Node { node: name.to_owned(), connected: true, load: Some(load), ..Node::default() }
    }

    fn snapshot() -> Snapshot {
        let nodes = vec![
            node("a", 1 << 30, 5),
            node("b", 0, 0),
            Node { node: "c\x1b".to_owned(), ..Node::default() },
        ];
        let directory = Ok(StatusReply { nodes, objects: 7, ..StatusReply::default() });
        Snapshot { store: NodeStatus::default(), directory, more: More::Nothing }
    }

    fn key(code: KeyCode) -> Event {
        Event::Key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    /// The lines that are shown.
    fn drawn(screen: &mut Screen, width: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, 12)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let cells: Vec<&str> = buffer.content().iter().map(|cell| cell.symbol()).collect();
        cells.chunks(usize::from(width)).map(|line| line.concat().trim_end().to_owned()).collect()
    }

    #[test]
    fn nodes_are_shown_and_sorted() {
        let mut screen = Screen::new(false);
        assert!(drawn(&mut screen, 100)[1].contains("asking"));
        screen.take(Ok(snapshot()));
        let lines = drawn(&mut screen, 120);
        assert!(lines[2].contains("2 nodes, 7 objects"), "{lines:#?}");
        assert!(lines[4].starts_with("a ") && lines[5].starts_with("b "), "{lines:#?}");
        assert!(
            lines[6].starts_with("c?") && lines[6].contains("no data") && lines[6].contains("away"),
            "{lines:#?}"
        );
        assert!(lines[5].contains(&format!("[{}]", "|".repeat(18))), "{lines:#?}");
        assert!(matches!(screen.handle(&key(KeyCode::Char('s'))), ControlFlow::Continue(None)));
        assert!(drawn(&mut screen, 120)[4].starts_with("b "));
        // However narrow: it is cut, and nothing else.
        for width in [1, 5, 20] {
            drawn(&mut screen, width);
        }
    }

    #[test]
    fn keys_ask_move_and_end() {
        let mut screen = Screen::new(true);
        let asked = |screen: &mut Screen, code| match screen.handle(&key(code)) {
            ControlFlow::Continue(question) => question,
            ControlFlow::Break(()) => panic!("it ended"),
        };
        assert_eq!(screen.due(), Some(Question::Nodes));
        let all = Question::Objects { prefix: Vec::new(), after: Vec::new() };
        assert_eq!(asked(&mut screen, KeyCode::Char('2')), Some(all));
        asked(&mut screen, KeyCode::Char('/'));
        for (code, prefix) in
            [(KeyCode::Char('w'), "w"), (KeyCode::Char('q'), "wq"), (KeyCode::Backspace, "w")]
        {
            let Some(Question::Objects { prefix: found, .. }) = asked(&mut screen, code) else {
                panic!("{code:?}")
            };
            assert_eq!(found, prefix.as_bytes());
        }
        asked(&mut screen, KeyCode::Esc);
        let objects = ["x", "y"].map(|name| Locations {
            id: ObjectId::new(name).unwrap(),
            object: None,
            locations: Vec::new(),
        });
        let more = More::Objects(objects.to_vec(), Some(ObjectId::new("y").unwrap()));
        screen.take(Ok(Snapshot { more, ..snapshot() }));
        drawn(&mut screen, 100);
        asked(&mut screen, KeyCode::Down);
        assert_eq!(asked(&mut screen, KeyCode::Enter), Some(Question::Object(ObjectId::new("y").unwrap())));
        asked(&mut screen, KeyCode::Esc);
        let Some(Question::Objects { after, .. }) = asked(&mut screen, KeyCode::Char('n')) else { panic!() };
        assert_eq!(after, b"y");
        asked(&mut screen, KeyCode::Char('p'));
        assert_eq!(screen.due(), None);
        assert_eq!(screen.handle(&key(KeyCode::Char('q'))), ControlFlow::Break(()));
        let stop = Event::Key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert_eq!(screen.handle(&stop), ControlFlow::Break(()));
    }

    #[test]
    fn without_colours_there_are_none() {
        for (has_colours, expected) in [(true, true), (false, false)] {
            let mut screen = Screen::new(has_colours);
            screen.take(Ok(snapshot()));
            screen.take(Err("gone".to_owned()));
            let mut terminal = Terminal::new(TestBackend::new(80, 12)).unwrap();
            terminal.draw(|frame| screen.draw(frame)).unwrap();
            let cells = terminal.backend().buffer().content();
            assert_eq!(cells.iter().any(|cell| cell.fg != Color::Reset), expected);
        }
    }
}
