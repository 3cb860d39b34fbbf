mod draw;

use std::ops::ControlFlow;

use hoplite_client::ObjectId;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::widgets::TableState;

use super::cluster::{More, Question, Snapshot};
use super::traffic;

const MAX_PREFIX_CHARS: usize = 255;
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum View {
    Nodes,
    Objects,
    Transfers,
    Reduces,
    Links,
    Directory,
    Problems,
}

const VIEWS: [(View, &str); 7] = [
    (View::Nodes, "Nodes"),
    (View::Objects, "Objects"),
    (View::Transfers, "Transfers"),
    (View::Reduces, "Reduces"),
    (View::Links, "Links"),
    (View::Directory, "Directory"),
    (View::Problems, "Problems"),
];

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

#[derive(Debug)]
pub(super) struct Screen {
    has_colours: bool,
    view: View,
    order: Order,
    is_paused: bool,
    is_typing: bool,
    prefix: String,
    /// Last id before each page, up to the shown page.
    pages: Vec<Vec<u8>>,
    object: Option<ObjectId>,
    chosen_in: View,
    latest: Option<Snapshot>,
    trouble: Option<String>,
    rows: TableState,
    /// Number of all rows; `height` rows fit on the screen.
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
            chosen_in: View::Objects,
            latest: None,
            trouble: None,
            rows: TableState::default().with_selected(0),
            count: 0,
            height: 1,
        }
    }

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
            _ => Question::Nodes,
        }
    }

    pub(super) fn take(&mut self, answer: Result<Snapshot, String>) {
        match answer {
            Ok(mut snapshot) => {
                if let (More::Nothing, Some(before)) = (&snapshot.more, self.latest.take()) {
                    snapshot.more = before.more;
                }
                self.latest = Some(snapshot);
                self.trouble = None;
            }
            Err(why) => self.trouble = Some(why),
        }
    }

    /// A break ends the program; a returned query is sent at once.
    pub(super) fn handle(&mut self, event: &Event) -> ControlFlow<(), Option<Question>> {
        let Event::Key(KeyEvent {
            code,
            modifiers,
            kind: KeyEventKind::Press | KeyEventKind::Repeat,
            ..
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
            KeyCode::Esc if self.object.is_some() => self.open(self.chosen_in),
            KeyCode::Esc => self.search(""),
            KeyCode::Char(digit @ '1'..='7') => self.open(VIEWS[*digit as usize - '1' as usize].0),
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
            KeyCode::Char(character)
                if self.prefix.len() + character.len_utf8() <= MAX_PREFIX_CHARS =>
            {
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
        let (Some(snapshot), Some(row), None) = (&self.latest, self.rows.selected(), &self.object)
        else {
            return;
        };
        let chosen = match (self.view, &snapshot.more) {
            (View::Objects, More::Objects(objects, _)) => {
                objects.get(row).map(|object| object.id.clone())
            }
            (View::Transfers, _) => {
                let transfers = traffic::transfers(snapshot, &self.prefix);
                transfers.get(row).and_then(|(_, transfer)| traffic::id(&transfer.id))
            }
            (View::Reduces, _) => {
                let reduces = traffic::reduces(snapshot, &self.prefix);
                reduces.get(row).and_then(|(_, reduce)| traffic::id(&reduce.target))
            }
            _ => None,
        };
        if let Some(id) = chosen {
            (self.chosen_in, self.view, self.object) = (self.view, View::Objects, Some(id));
            self.rows.select(Some(0));
        }
    }

    fn move_by(&mut self, rows: isize) {
        let at = self.rows.selected().unwrap_or(0).saturating_add_signed(rows);
        self.rows.select(Some(at.min(self.count.saturating_sub(1))));
    }
}

#[cfg(test)]
mod tests {
    use hoplite_client::{Locations, NodeStatus};
    use hoplite_core::NodeId;
    use hoplite_core::problem::{Place, Problem, ProblemKind};
    use hoplite_proto::v1::load_report::Rail;
    use hoplite_proto::v1::status_reply::Node;
    use hoplite_proto::v1::{LoadReport, StatusReply};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::style::Color;

    use super::*;

    fn node(name: &str, free_bytes: u64, receive_rate: u64) -> Node {
        let load = LoadReport {
            capacity_bytes: 1 << 30,
            free_bytes,
            receive_rate,
            ..LoadReport::default()
        };
        Node { node: name.to_owned(), connected: true, load: Some(load), ..Node::default() }
    }

    fn snapshot() -> Snapshot {
        let nodes = vec![
            node("a", 1 << 30, 5),
            node("b", 0, 0),
            Node { node: "c\x1b".to_owned(), ..Node::default() },
        ];
        let directory = Ok(StatusReply { nodes, objects: 7, ..StatusReply::default() });
        Snapshot {
            store: NodeStatus::default(),
            directory,
            problems: Vec::new(),
            more: More::Nothing,
        }
    }

    fn key(code: KeyCode) -> Event {
        Event::Key(KeyEvent::new(code, KeyModifiers::NONE))
    }

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
        for width in [1, 5, 20] {
            drawn(&mut screen, width);
        }
    }

    #[test]
    fn the_chosen_node_shows_its_network_cards() {
        let rail = |address: &str, receive_rate, failed_routes| Rail {
            address: address.to_owned(),
            receive_rate,
            failed_routes,
            ..Rail::default()
        };
        let with = |rails| {
            let mut several = node("b", 0, 2 << 10);
            several.load.as_mut().unwrap().rails = rails;
            let nodes = vec![node("a", 0, 0), several, node("c", 0, 0)];
            let directory = Ok(StatusReply { nodes, ..StatusReply::default() });
            Ok(Snapshot { directory, ..snapshot() })
        };
        let mut screen = Screen::new(false);
        screen.take(with(vec![rail("10.0.0.1", 2 << 10, 0), rail("10.0.1.1\x1b", 0, 3)]));
        let lines = drawn(&mut screen, 140);
        assert!(lines[5].starts_with("b ") && lines[6].starts_with("c "), "{lines:#?}");
        let _ = screen.handle(&key(KeyCode::Down));
        let lines = drawn(&mut screen, 140);
        assert!(
            lines[6].starts_with("  10.0.0.1 ") && lines[6].contains("2.0 KiB/s"),
            "{lines:#?}"
        );
        assert!(lines[7].starts_with("  10.0.1.1? "), "{lines:#?}");
        assert!(lines[7].ends_with("failed routes: 3"), "{lines:#?}");
        assert!(lines[8].starts_with("c "), "{lines:#?}");
        screen.take(with(vec![rail("10.0.0.1", 0, 0); 16]));
        let lines = drawn(&mut screen, 140);
        assert!(lines.iter().any(|line| line.starts_with("b ")), "{lines:#?}");
    }

    #[test]
    fn problems_are_counted_in_each_view_and_listed_with_their_cures() {
        let place = Place {
            node: NodeId::new("b").ok(),
            object: None,
            text: "2 calls wait\x1b".to_owned(),
        };
        let problems = Problem::new(ProblemKind::Full, vec![place]).into_iter().collect();
        let mut screen = Screen::new(false);
        screen.take(Ok(Snapshot { problems, ..snapshot() }));
        assert!(drawn(&mut screen, 120)[2].contains("PROBLEMS: a store is full (7)"));
        let _ = screen.handle(&key(KeyCode::Char('7')));
        let text = drawn(&mut screen, 60).join("\n");
        for part in
            ["a store is full", "Cause: Puts, gets", "Cure: Delete objects", "b: 2 calls wait?"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        screen.take(Ok(snapshot()));
        assert!(drawn(&mut screen, 60)[3].contains("No problem is known"));
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
        assert_eq!(
            asked(&mut screen, KeyCode::Enter),
            Some(Question::Object(ObjectId::new("y").unwrap()))
        );
        asked(&mut screen, KeyCode::Esc);
        let Some(Question::Objects { after, .. }) = asked(&mut screen, KeyCode::Char('n')) else {
            panic!()
        };
        assert_eq!(after, b"y");
        asked(&mut screen, KeyCode::Char('p'));
        assert_eq!(screen.due(), None);
        assert_eq!(screen.handle(&key(KeyCode::Char('q'))), ControlFlow::Break(()));
        let stop = Event::Key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert_eq!(screen.handle(&stop), ControlFlow::Break(()));
    }

    #[test]
    fn transfers_reduces_and_links_are_shown_and_lead_to_their_objects() {
        use hoplite_proto::v1::load_report::{Link, Reduce, Transfer};

        let transfer = |id: &'static str, rate| Transfer {
            id: id.as_bytes().into(),
            size_bytes: 100,
            valid_bytes: 50,
            rate,
        };
        let mut busy = node("busy", 0, 0);
        let load = busy.load.as_mut().unwrap();
        load.transfers = vec![transfer("slow", 1 << 10), transfer("fast", 1 << 30)];
        load.reduces = vec![Reduce {
            target: b"sum".as_slice().into(),
            op: "sum".to_owned(),
            joined: 3,
            sources: 4,
            plan: "chain of 2 dimensions".to_owned(),
            elapsed_ms: 2000,
        }];
        let link = |peer: &str, is_slow, lanes| Link {
            peer: peer.to_owned(),
            bytes_per_second: 1 << 20,
            round_trip_ns: 20_000,
            is_slow,
            lanes,
        };
        load.links = vec![link("good", false, 0), link("bad", true, 12)];
        let mut screen = Screen::new(false);
        let directory =
            Ok(StatusReply { nodes: vec![node("idle", 0, 0), busy], ..StatusReply::default() });
        screen.take(Ok(Snapshot { directory, ..snapshot() }));
        let show = |screen: &mut Screen, code| {
            let _ = screen.handle(&key(code));
            drawn(screen, 120)
        };
        let lines = show(&mut screen, KeyCode::Char('5'));
        let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            cells(&lines[4]),
            ["busy", "bad", "1.0", "MiB/s", "20µs", "12", "slow"],
            "{lines:#?}"
        );
        assert_eq!(cells(&lines[5]), ["busy", "good", "1.0", "MiB/s", "20µs", "-"], "{lines:#?}");
        let lines = show(&mut screen, KeyCode::Char('4'));
        assert!(
            lines[4].contains("3 of 4") && lines[4].contains("chain of 2 dimensions"),
            "{lines:#?}"
        );
        let lines = show(&mut screen, KeyCode::Char('3'));
        assert!(lines[4].starts_with("fast") && lines[4].contains("busy"), "{lines:#?}");
        assert!(lines[4].contains(&format!("[{}{}]", "|".repeat(9), " ".repeat(9))), "{lines:#?}");
        assert!(lines[5].starts_with("slow"), "{lines:#?}");
        let _ = screen.handle(&key(KeyCode::Down));
        let asked = screen.handle(&key(KeyCode::Enter));
        let object = Question::Object(ObjectId::new("slow").unwrap());
        assert_eq!(asked, ControlFlow::Continue(Some(object)));
        let lines = show(&mut screen, KeyCode::Esc);
        assert!(lines[4].starts_with("fast"), "back where it was chosen: {lines:#?}");
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
