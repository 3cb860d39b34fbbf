use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::builder::{OsStringValueParser, TypedValueParser};
use hoplite_client::{
    AfterLoss, Client, ConnectOptions, DEFAULT_CONNECT_TIMEOUT, Lifetime, Notice, ObjectId, Owner,
    Ttl, TtlAction, default_socket_path, default_timeout, parse_timeout,
};
use hoplite_core::text::escape;
use hoplite_core::{Error as ObjectError, Operation};
use hoplite_daemon::{NotASize, Size};

use crate::progress;

/// The store, and the time limit for waiting.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct StoreArguments {
    /// The store's Unix socket [env: HOPLITE_SOCKET] [default: $XDG_RUNTIME_DIR/hoplite/store.sock,
    /// or /tmp/hoplite-UID/store.sock]
    #[arg(long, global = true, value_name = "PATH", help_heading = "Store options")]
    socket: Option<PathBuf>,
    /// Longest time for connecting and waiting: 500ms, 10s, 2min, never; 0 does not wait
    /// [env: HOPLITE_TIMEOUT] [default: 5min]
    #[arg(
        long,
        global = true,
        value_name = "DURATION",
        value_parser = parse_timeout,
        help_heading = "Store options"
    )]
    timeout: Option<Duration>,
    #[arg(skip)]
    connected_after: OnceLock<Duration>,
}

/// The lifetime of a put.
#[derive(Debug, clap::Args)]
pub(crate) struct LifetimeArguments {
    /// Delete the object after all clients of the store that hold this owner have been gone for the
    /// store's grace period. A client must hold it now
    #[arg(long, value_name = "NAME")]
    owner: Option<Owner>,
    /// Delete the object after this time, such as 90s or 2h; at most 30 days
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    ttl: Option<Duration>,
    /// Action at the end of --ttl: delete removes the object everywhere; free drops the copy of
    /// this store
    #[arg(long, value_name = "ACTION", requires = "ttl", default_value = "delete")]
    ttl_action: TtlAction,
}

impl LifetimeArguments {
    pub(crate) fn lifetime(self) -> Result<Option<Arc<Lifetime>>, ObjectError> {
        let ttl = self.ttl.map(|after| Ttl::new(after, self.ttl_action)).transpose()?;
        Ok(Lifetime::of(self.owner, ttl))
    }
}

impl StoreArguments {
    pub(crate) async fn connect(&self) -> hoplite_client::Result<Client> {
        self.connect_with(AfterLoss::default()).await
    }

    pub(crate) async fn connect_to_watch(&self) -> hoplite_client::Result<Client> {
        self.connect_with(AfterLoss::Fail).await
    }

    async fn connect_with(&self, after_loss: AfterLoss) -> hoplite_client::Result<Client> {
        let started = Instant::now();
        let client = Client::connect_with(ConnectOptions {
            socket: self.socket(),
            timeout: self.call_timeout().min(DEFAULT_CONNECT_TIMEOUT),
            listener: print_notice,
            after_loss,
            ..ConnectOptions::default()
        });
        let client = client.await?;
        self.connected_after.get_or_init(|| started.elapsed());
        Ok(client)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        let socket = self.socket.clone().filter(|path| !path.as_os_str().is_empty());
        socket.unwrap_or_else(default_socket_path)
    }

    /// Time that is left after connecting.
    pub(crate) fn timeout(&self) -> Duration {
        let connected_after = self.connected_after.get().copied().unwrap_or_default();
        let given = self.given_timeout();
        // Zero would have another meaning.
        given.saturating_sub(connected_after).max(given.min(Duration::from_millis(1)))
    }

    pub(crate) fn given_timeout(&self) -> Duration {
        self.timeout.unwrap_or_else(default_timeout)
    }

    /// Timeout of a call that waits for no object. `--timeout 0` selects the default connect
    /// timeout, because the store needs time to answer.
    pub(crate) fn call_timeout(&self) -> Duration {
        let timeout = self.timeout();
        if timeout.is_zero() { DEFAULT_CONNECT_TIMEOUT } else { timeout }
    }

    /// Names the objects and the cause in a timeout; returns other errors unchanged.
    pub(crate) fn explain(&self, error: hoplite_client::Error, ids: &[ObjectId]) -> anyhow::Error {
        let hoplite_client::Error::Object(ObjectError::Timeout { operation, missing, .. }) = error
        else {
            return error.into();
        };
        let objects = match ids {
            [id] => id.readable(),
            _ => format!("{} objects", ids.len()),
        };
        let missing = missing.map_or_else(String::new, |missing| format!(": {missing}"));
        TimedOut { operation, objects, timeout: self.given_timeout(), missing }.into()
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{operation} of {objects} timed out after {}{missing}", humantime::format_duration(*timeout))]
struct TimedOut {
    operation: Operation,
    objects: String,
    timeout: Duration,
    /// A colon and the timeout's cause, if known.
    missing: String,
}

fn print_notice(notice: &Notice) {
    progress::note(&format!("hoplite: {}", escape(&notice.to_string())));
}

pub(crate) fn id_parser() -> impl TypedValueParser<Value = ObjectId> {
    OsStringValueParser::new().try_map(|text| ObjectId::new(text.as_encoded_bytes()))
}

pub(crate) fn parse_duration(text: &str) -> anyhow::Result<Duration> {
    if let Ok(seconds) = text.parse() {
        return Duration::try_from_secs_f64(seconds)
            .context("not a duration that can be waited for");
    }
    Ok(humantime::parse_duration(text)?)
}

pub(crate) fn parse_size(text: &str) -> Result<u64, NotASize> {
    text.parse().map(|Size(size_bytes)| size_bytes)
}

pub(crate) fn parse_shape(text: &str) -> anyhow::Result<Shape> {
    let extents = text.split(',').map(|extent| extent.trim().parse());
    Ok(Shape(
        extents
            .collect::<Result<_, _>>()
            .context("a shape is a list of numbers, such as 1024,768")?,
    ))
}

/// A separate type, because clap takes a plain list for a repeated argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shape(pub(crate) Vec<u64>);

#[cfg(test)]
mod tests {
    use hoplite_client::{DEFAULT_TIMEOUT_TEXT, Missing, TIMEOUT_VARIABLE};

    use super::*;

    #[test]
    fn durations_have_units_or_are_seconds() {
        assert_eq!(parse_duration("1min 30s").unwrap(), Duration::from_secs(90));
        assert_eq!(parse_duration("0.25").unwrap(), Duration::from_millis(250));
        assert_eq!(parse_duration("0").unwrap(), Duration::ZERO);
        for text in ["", "soon", "-1", "1e300", "nan"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn timeouts_name_what_was_waited_for() {
        let explained = |seconds, ids: &[&str]| {
            let store = StoreArguments {
                socket: None,
                timeout: Some(Duration::from_secs(seconds)),
                connected_after: OnceLock::new(),
            };
            let waited = Duration::from_micros(1_000_061);
            let missing = ids
                .first()
                .filter(|_| seconds == 1)
                .map(|id| Box::new(Missing::Object { id: ObjectId::new(id).unwrap() }));
            let error = ObjectError::Timeout { operation: Operation::Get, waited, missing };
            let ids: Vec<_> = ids.iter().map(|id| ObjectId::new(id).unwrap()).collect();
            store.explain(error.into(), &ids).to_string()
        };
        let expected = "get of nope timed out after 1s: no store offers object nope";
        assert_eq!(explained(1, &["nope"]), expected);
        assert_eq!(explained(0, &["a", "b"]), "get of 2 objects timed out after 0s");
    }

    #[test]
    fn the_help_names_the_default_that_all_clients_have() {
        #[derive(clap::Parser)]
        struct Program {
            #[command(flatten)]
            _store: StoreArguments,
        }
        let help = <Program as clap::CommandFactory>::command().render_help().to_string();
        let named = format!("[env: {TIMEOUT_VARIABLE}] [default: {DEFAULT_TIMEOUT_TEXT}]");
        assert!(help.split_whitespace().collect::<Vec<_>>().join(" ").contains(&named), "{help}");
    }

    #[test]
    fn shapes_are_lists_of_numbers() {
        assert_eq!(parse_shape("2, 3").unwrap(), Shape(vec![2, 3]));
        assert_eq!(parse_shape("7").unwrap(), Shape(vec![7]));
        for text in ["", "2,", "2x3", "-1"] {
            assert!(parse_shape(text).is_err(), "{text}");
        }
    }
}
