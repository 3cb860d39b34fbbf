use std::io::{self, Write};

use anyhow::Context;
use hoplite_client::{ObjectId, Quota, QuotaLimits, QuotaSubject};
use hoplite_core::text::escape;
use hoplite_daemon::User;
use serde::Serialize;

use crate::arguments::{StoreArguments, id_parser, parse_size};
use crate::output::{self, Alignment, Id, Table};

const EXAMPLES: &str = "Examples:
  hoplite quota
  hoplite quota set --user alice --memory 2GiB --objects 1000
  hoplite quota set --each-client --memory 8GiB
  hoplite quota set --prefix tmp/ --memory 512MiB --disk 4GiB
  hoplite quota remove --user alice

A quota limits the objects that programs of this machine put at this store. It lasts until the store ends. Only root and the
user of the store may set and remove quotas.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    change: Option<Change>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Change {
    /// Set all limits of a quota; one that is left out no longer applies
    Set {
        #[command(flatten)]
        subject: Subject,
        #[command(flatten)]
        limits: Limits,
        /// Print the quota as a JSON array
        #[arg(long)]
        json: bool,
    },
    /// Remove a quota
    Remove {
        #[command(flatten)]
        subject: Subject,
        /// Print the removed quota as a JSON array
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Subject {
    /// User whose programs put the objects, by name or number
    #[arg(long, value_name = "USER")]
    user: Option<User>,
    /// Objects of each client separately, until the client disconnects
    #[arg(long)]
    each_client: bool,
    /// Start of the ids of the objects
    #[arg(long, value_parser = id_parser())]
    prefix: Option<ObjectId>,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
struct Limits {
    /// Most shared memory of the objects together, such as 2GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// Most bytes of the objects in spill files, such as 10GiB; further objects stay in memory
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    disk: Option<u64>,
    /// Most objects
    #[arg(long, value_name = "NUMBER")]
    objects: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Row {
    /// User's name, or number if this machine knows no name; `None` for other quotas.
    user: Option<String>,
    uid: Option<u32>,
    /// `true` for the quota of each client; the use is then the most of any client.
    each_client: bool,
    prefix: Option<Id>,
    memory_bytes: u64,
    memory_limit_bytes: Option<u64>,
    disk_bytes: u64,
    disk_limit_bytes: Option<u64>,
    objects: u64,
    objects_limit: Option<u64>,
}

impl Subject {
    fn named(self) -> anyhow::Result<QuotaSubject> {
        let prefix = self.prefix.map(QuotaSubject::Prefix);
        prefix
            .or(self.user.map(|User(user)| QuotaSubject::User(user)))
            .or(self.each_client.then_some(QuotaSubject::EachClient))
            .context("--user, --each-client or --prefix is missing")
    }
}

impl Row {
    fn of(quota: &Quota) -> Self {
        let Quota { subject, limits, used } = quota;
        let (uid, prefix) = match subject {
            QuotaSubject::User(user) => (Some(*user), None),
            QuotaSubject::EachClient => (None, None),
            QuotaSubject::Prefix(prefix) => (None, Some(Id::new(prefix))),
        };
        Self {
            user: uid.map(|user| User(user).name().unwrap_or_else(|| user.to_string())),
            uid,
            each_client: *subject == QuotaSubject::EachClient,
            prefix,
            memory_bytes: used.memory_bytes,
            memory_limit_bytes: limits.memory_bytes,
            disk_bytes: used.disk_bytes,
            disk_limit_bytes: limits.disk_bytes,
            objects: used.objects,
            objects_limit: limits.objects,
        }
    }

    fn subject(&self) -> String {
        match (&self.user, &self.prefix) {
            (Some(user), _) => format!("user {}", escape(user)),
            (None, Some(prefix)) => format!("prefix {}", prefix.readable()),
            (None, None) => "each client".to_owned(),
        }
    }
}

pub(crate) async fn run(store: &StoreArguments, arguments: Arguments) -> anyhow::Result<()> {
    let client = store.connect().await?;
    let (quotas, json) = match arguments.change {
        None => (client.quotas().await?, arguments.json),
        Some(Change::Set { subject, limits, json }) => {
            let Limits { memory: memory_bytes, disk: disk_bytes, objects } = limits;
            let limits = QuotaLimits { memory_bytes, disk_bytes, objects };
            (vec![client.set_quota(subject.named()?, Some(limits)).await?], json)
        }
        Some(Change::Remove { subject, json }) => {
            let removed = client.set_quota(subject.named()?, None).await?;
            if !json {
                return Ok(writeln!(
                    io::stdout(),
                    "removed the quota of {}",
                    Row::of(&removed).subject()
                )?);
            }
            (vec![removed], json)
        }
    };
    let rows: Vec<Row> = quotas.iter().map(Row::of).collect();
    let mut out = io::stdout().lock();
    if json { Ok(output::json(&mut out, &rows)?) } else { Ok(print(&mut out, &rows)?) }
}

fn print(out: &mut impl Write, rows: &[Row]) -> io::Result<()> {
    let mut table = Table::new([
        ("QUOTA", Alignment::Left),
        ("MEMORY", Alignment::Right),
        ("LIMIT", Alignment::Right),
        ("DISK", Alignment::Right),
        ("LIMIT", Alignment::Right),
        ("OBJECTS", Alignment::Right),
        ("LIMIT", Alignment::Right),
    ]);
    let limit = |limit: Option<String>| limit.unwrap_or_else(|| "-".to_owned());
    for row in rows {
        table.row([
            row.subject(),
            output::size(row.memory_bytes),
            limit(row.memory_limit_bytes.map(output::size)),
            output::size(row.disk_bytes),
            limit(row.disk_limit_bytes.map(output::size)),
            row.objects.to_string(),
            limit(row.objects_limit.map(|limit| limit.to_string())),
        ]);
    }
    table.print(out)
}
