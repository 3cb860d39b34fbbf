use std::cmp::Reverse;
use std::time::Duration;

use hoplite_client::{LocationState, Locations, RailStatus, Retention};
use hoplite_core::problem::{Place, Problem, Severity};
use hoplite_proto::v1::load_report::Rail;
use hoplite_proto::v1::status_reply::Node;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Table, Wrap};

use super::{ORDERS, Order, Screen, VIEWS, View};
use crate::output::size;
use crate::top::cluster::{More, Snapshot};
use crate::top::traffic;

const MAX_INDENT: usize = 8;
const BAR: usize = 20;

impl Screen {
    pub(in crate::top) fn draw(&mut self, frame: &mut Frame<'_>) {
        let [head, facts, body, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(2),
            Constraint::Min(1),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let tabs = VIEWS.iter().enumerate().map(|(number, (view, name))| {
            let style = if *view == self.view {
                Style::new().add_modifier(Modifier::REVERSED)
            } else {
                Style::new()
            };
            Span::styled(format!(" {} {name} ", number + 1), style)
        });
        frame.render_widget(Line::from_iter(tabs), head);
        frame.render_widget(Paragraph::new(self.facts()), facts);
        self.height = usize::from(body.height.saturating_sub(1)).max(1);
        let latest = self.latest.take();
        if let Some(snapshot) = &latest {
            match (self.view, &snapshot.more) {
                (View::Nodes, _) => self.draw_nodes(frame, body, snapshot),
                (View::Transfers, _) => self.draw_transfers(frame, body, snapshot),
                (View::Reduces, _) => self.draw_reduces(frame, body, snapshot),
                (View::Links, _) => self.draw_links(frame, body, snapshot),
                (View::Directory, _) => self.draw_directory(frame, body, snapshot),
                (View::Problems, _) => self.draw_problems(frame, body, &snapshot.problems),
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

    fn style(&self, colour: Color) -> Style {
        if self.has_colours { Style::new().fg(colour) } else { Style::new() }
    }

    fn foot(&self) -> Line<'static> {
        if let Some(trouble) = &self.trouble {
            return Line::styled(
                trouble.clone(),
                self.style(Color::Red).add_modifier(Modifier::BOLD),
            );
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
            (View::Transfers | View::Reduces, _) => "Enter look at  / id".to_owned(),
            (View::Links, _) => "/ node".to_owned(),
            (View::Directory | View::Problems, _) => String::new(),
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
        let Some(Snapshot { store, directory, problems, .. }) = &self.latest else {
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
            _ if !problems.is_empty() => {
                let titles: Vec<String> = problems.iter().map(Problem::title).collect();
                Line::styled(format!("PROBLEMS: {} (7)", titles.join("; ")), self.style(Color::Red))
            }
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
            Err(why) => {
                Line::styled(format!("only this node is shown: {why}"), self.style(Color::Yellow))
            }
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

    fn draw_problems(&mut self, frame: &mut Frame<'_>, area: Rect, problems: &[Problem]) {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let mut lines = Vec::new();
        for problem in problems {
            let colour = match problem.kind.severity() {
                Severity::Critical => Color::Red,
                Severity::Warning => Color::Yellow,
            };
            lines.push(Line::styled(problem.title(), self.style(colour).patch(bold)));
            lines.push(Line::raw(format!("  Cause: {}", problem.kind.cause())));
            lines.push(Line::raw(format!("  Cure: {}", problem.kind.cure())));
            lines.extend(problem.places.iter().map(|Place { node, text, .. }| {
                let node = node.as_ref().map_or_else(String::new, |node| format!("{node}: "));
                Line::raw(format!("    {node}{}", plain(text)))
            }));
            let more = problem.count - problem.places.len().min(problem.count);
            lines.extend((more > 0).then(|| Line::raw(format!("    and {more} more"))));
        }
        if problems.is_empty() {
            lines.push(Line::raw("No problem is known."));
        }
        self.count = lines.len();
        let first = self.rows.selected().unwrap_or(0).min(self.count - 1);
        let first = u16::try_from(first).unwrap_or(u16::MAX);
        let text = Paragraph::new(lines).wrap(Wrap { trim: false }).scroll((first, 0));
        frame.render_widget(text, area);
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
        let mut nodes: Vec<&Node> =
            nodes.iter().filter(|node| node.node.starts_with(&self.prefix)).collect();
        let load = |node: &Node, what: fn(&hoplite_proto::v1::LoadReport) -> u64| {
            node.load.as_ref().map_or(0, what)
        };
        match self.order {
            Order::Name => {}
            Order::Memory => nodes.sort_by_key(|node| {
                Reverse(load(node, |load| load.capacity_bytes.saturating_sub(load.free_bytes)))
            }),
            Order::Receiving => {
                nodes.sort_by_key(|node| Reverse(load(node, |load| load.receive_rate)))
            }
            Order::Sending => nodes.sort_by_key(|node| Reverse(load(node, |load| load.send_rate))),
        }
        let chosen = self.rows.selected();
        let rows = nodes.iter().enumerate().map(|(number, node)| {
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
            let cells = [
                plain(&node.node),
                bar(used, load.capacity_bytes),
                size(used),
                size(load.capacity_bytes),
                rate(load.receive_rate),
                rate(load.send_rate),
                load.copies.to_string(),
                plain(&state),
            ];
            let cards = if chosen == Some(number) { &load.rails[..] } else { &[] };
            // The table leaves out a row that is higher than the space below its header.
            let visible = cards.len().min(usize::from(area.height).saturating_sub(2));
            with_cards(cells, &cards[..visible]).style(style)
        });
        let rows = rows.collect();
        let header = Row::new([
            "NODE", "MEMORY", "IN USE", "SIZE", "RECEIVING", "SENDING", "COPIES", "LABELS",
        ]);
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
            let pinned =
                object.locations.iter().find(|location| location.retention == Retention::Pinned);
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

    fn draw_object(
        &mut self,
        frame: &mut Frame<'_>,
        area: Rect,
        description: &hoplite_client::Description,
    ) {
        let latest =
            |node: &str| description.grants.iter().rev().find(|grant| grant.receiver == node);
        let rows =
            traffic::tree(&description.locations.locations).into_iter().map(|(depth, location)| {
                let grant = latest(location.node.as_str());
                let from = location.pulling_from.as_ref().map(ToString::to_string);
                Row::new([
                    format!("{}{}", "  ".repeat(depth.min(MAX_INDENT)), location.node),
                    format!("{:?}", location.state).to_lowercase(),
                    from.or_else(|| grant.map(|grant| plain(&grant.sender))).unwrap_or_default(),
                    grant.map_or_else(String::new, |grant| plain(&grant.reason)),
                    grant.map_or_else(String::new, |grant| {
                        plain(grant.outcome.as_deref().unwrap_or("running"))
                    }),
                ])
            });
        let rows = rows.collect();
        let header = Row::new(["COPY AT", "STATE", "FROM", "WHY", "OUTCOME"]);
        let widths = [24, 10, 24, 24, 20].map(Constraint::Length).to_vec();
        let [title, body] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(area);
        let id = description.locations.id.readable();
        let bytes = description.locations.object.as_ref().map_or(0, |object| object.size_bytes);
        frame.render_widget(
            format!("{id}, {}, {} wait", size(bytes), description.waiting_receivers),
            title,
        );
        self.table(frame, body, header, rows, widths);
    }

    fn draw_transfers(&mut self, frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot) {
        let rows =
            traffic::transfers(snapshot, &self.prefix).into_iter().map(|(node, transfer)| {
                Row::new([
                    readable(&transfer.id),
                    size(transfer.size_bytes),
                    plain(&node.node),
                    bar(transfer.valid_bytes, transfer.size_bytes),
                    rate(transfer.rate),
                ])
            });
        let rows = rows.collect();
        let header = Row::new(["OBJECT", "SIZE", "TO", "THERE", "RATE"]);
        let widths = [11, 24, 20, 13].map(Constraint::Length);
        let widths = [Constraint::Min(20)].into_iter().chain(widths).collect();
        self.table(frame, area, header, rows, widths);
    }

    fn draw_reduces(&mut self, frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot) {
        let rows = traffic::reduces(snapshot, &self.prefix).into_iter().map(|(node, reduce)| {
            let elapsed = Duration::from_secs(reduce.elapsed_ms / 1000);
            Row::new([
                readable(&reduce.target),
                plain(&reduce.op),
                format!("{} of {}", reduce.joined, reduce.sources),
                plain(if reduce.plan.is_empty() { "not planned yet" } else { &reduce.plan }),
                plain(&node.node),
                humantime::format_duration(elapsed).to_string(),
            ])
        });
        let rows = rows.collect();
        let header = Row::new(["TARGET", "OPERATION", "SOURCES", "SCHEDULE", "COORDINATOR", "FOR"]);
        let widths = [24, 10, 12].map(Constraint::Length).into_iter();
        let widths =
            widths.chain([Constraint::Min(24), Constraint::Length(24), Constraint::Length(8)]);
        self.table(frame, area, header, rows, widths.collect());
    }

    fn draw_links(&mut self, frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot) {
        let rows = traffic::links(snapshot, &self.prefix).into_iter().map(|(node, link)| {
            let style = if link.is_slow { self.style(Color::Red) } else { Style::new() };
            Row::new([
                plain(&node.node),
                plain(&link.peer),
                rate(link.bytes_per_second),
                format!("{:?}", Duration::from_nanos(link.round_trip_ns)),
                if link.lanes == 0 { "-".to_owned() } else { link.lanes.to_string() },
                if link.is_slow { "slow" } else { "" }.to_owned(),
            ])
            .style(style)
        });
        let rows = rows.collect();
        let header = Row::new(["FROM", "TO", "CARRIES", "ROUND TRIP", "LANES", ""]);
        let widths = [24, 24, 13, 12, 6, 6].map(Constraint::Length).to_vec();
        self.table(frame, area, header, rows, widths);
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

/// Adds a line for each network card.
fn with_cards(mut cells: [String; 8], cards: &[Rail]) -> Row<'static> {
    let mut height = 1;
    for card in cards {
        let failed = match card.failed_routes {
            0 => String::new(),
            count => format!("failed routes: {count}"),
        };
        let (received, sent) = (rate(card.receive_rate), rate(card.send_rate));
        let lines =
            [(0, format!("  {}", plain(&card.address))), (4, received), (5, sent), (7, failed)];
        cells.iter_mut().for_each(|cell| cell.push('\n'));
        lines.into_iter().for_each(|(column, text)| cells[column].push_str(&text));
        height += 1;
    }
    Row::new(cells).height(height)
}

fn readable(id: &[u8]) -> String {
    traffic::id(id).map_or_else(String::new, |id| id.readable())
}

fn own_node(Snapshot { store, .. }: &Snapshot) -> Node {
    let load = hoplite_proto::v1::LoadReport {
        capacity_bytes: store.capacity_bytes,
        free_bytes: store.free_bytes,
        copies: store.copies,
        rails: store.rails.iter().map(own_rail).collect(),
        ..Default::default()
    };
    Node { node: store.node.clone(), connected: true, load: Some(load), ..Node::default() }
}

fn own_rail(rail: &RailStatus) -> Rail {
    Rail { address: rail.address.clone(), failed_routes: rail.failed_routes, ..Rail::default() }
}

/// Replaces control characters of a peer's text, which could change the terminal.
fn plain(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { '?' } else { character }).collect()
}

fn rate(bytes: u64) -> String {
    if bytes == 0 { "-".to_owned() } else { format!("{}/s", size(bytes)) }
}

fn bar(some: u64, all: u64) -> String {
    let share = if all == 0 { 0.0 } else { (some as f64 / all as f64).clamp(0.0, 1.0) };
    let full = (share * (BAR - 2) as f64).round() as usize;
    format!("[{}{}]", "|".repeat(full), " ".repeat(BAR - 2 - full))
}
