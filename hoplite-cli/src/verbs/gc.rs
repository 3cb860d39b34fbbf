use std::io::{self, Write};

use hoplite_client::{ObjectId, Ownerless};
use hoplite_core::text::escape;
use serde::Serialize;

use crate::arguments::{StoreArguments, id_parser};
use crate::output::{self, Alignment, Id, Table};

const PAGE_OBJECTS: usize = 1000;

const EXAMPLES: &str = "Examples:
  hoplite gc
  hoplite gc --gone
  hoplite gc --unowned tmp/ --dry-run
  hoplite gc --unowned tmp/

Lists ownerless objects that were put at this store. OWNER names an owner that no client of the store holds. A dash stands
for an object without owner and ttl whose client has disconnected.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Delete objects whose owner is gone, without waiting for the grace period
    #[arg(long)]
    gone: bool,
    /// Delete objects with this prefix that have neither an owner nor a ttl and whose client has
    /// disconnected
    #[arg(long, value_name = "PREFIX", value_parser = id_parser())]
    unowned: Option<ObjectId>,
    /// Delete no object, and show the ones that --gone and --unowned select
    #[arg(long)]
    dry_run: bool,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    id: Id,
    size_bytes: u64,
    owner: Option<String>,
    /// `true` if the command deletes the object, or would without `--dry-run`.
    selected: bool,
    deleted: bool,
}

impl Arguments {
    fn selects(&self, object: &Ownerless) -> bool {
        match (&object.owner, &self.unowned) {
            (Some(_), _) => self.gone,
            (None, Some(prefix)) => object.id.as_bytes().starts_with(prefix.as_bytes()),
            (None, None) => false,
        }
    }

    fn row(&self, object: &Ownerless) -> Row {
        let selected = self.selects(object);
        Row {
            id: Id::new(&object.id),
            size_bytes: object.size_bytes,
            owner: object.owner.as_ref().map(ToString::to_string),
            selected,
            deleted: selected && !self.dry_run,
        }
    }
}

pub(crate) async fn run(store: &StoreArguments, arguments: Arguments) -> anyhow::Result<()> {
    let client = store.connect().await?;
    let (mut rows, mut after) = (Vec::new(), Vec::new());
    loop {
        let page = client.ownerless("", &after, PAGE_OBJECTS).await?;
        let selected = page.objects.iter().filter(|object| arguments.selects(object));
        let selected: Vec<ObjectId> = selected.map(|object| object.id.clone()).collect();
        if !arguments.dry_run && !selected.is_empty() {
            let deleted = client.delete(&selected, store.call_timeout()).await;
            deleted.map_err(|error| store.explain(error, &selected))?;
        }
        rows.extend(page.objects.iter().map(|object| arguments.row(object)));
        match page.next {
            Some(next) => after = next.as_bytes().to_vec(),
            None => break,
        }
    }
    let mut out = io::stdout().lock();
    if arguments.json { Ok(output::json(&mut out, &rows)?) } else { Ok(print(&mut out, rows)?) }
}

fn print(out: &mut impl Write, rows: Vec<Row>) -> io::Result<()> {
    let mut table = Table::new([
        ("ID", Alignment::Left),
        ("SIZE", Alignment::Right),
        ("OWNER", Alignment::Left),
        ("ACTION", Alignment::Left),
    ]);
    for Row { id, size_bytes, owner, selected, deleted } in rows {
        let action = match (selected, deleted) {
            (_, true) => "deleted",
            (true, false) => "would be deleted",
            (false, false) => "kept",
        };
        table.row([
            id.readable().to_owned(),
            output::size(size_bytes),
            owner.map_or_else(|| "-".to_owned(), |owner| escape(&owner)),
            action.to_owned(),
        ]);
    }
    table.print(out)
}
