//! Settings from flags, `HOPLITE_*` variables, a TOML file, and defaults, in this order.
//!
//! A daemon's struct derives `clap::Args` with `long` and `env` on each field. The file's keys are
//! the long flags.

use std::ffi::OsString;
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use clap::{ArgMatches, Args, Command, FromArgMatches};
use toml::de::{DeTable, DeValue};

use crate::http::HostSettings;
use crate::logging::LogSettings;
use crate::metrics::MetricsSettings;
use crate::traces::TraceSettings;

/// Arguments of the process, which a file cannot set.
#[derive(Debug, clap::Args)]
pub(crate) struct ProcessArguments {
    /// A TOML file with settings. Unknown keys are errors.
    #[arg(long, env = "HOPLITE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the addresses on standard output, as a line of JSON, once the daemon listens there;
    /// and the line `ready` once it has everything that it needs
    #[arg(long)]
    pub(crate) print_addresses: bool,
    /// Exit when the process with this number ends; it must be the parent.
    #[arg(long, value_name = "PID", hide = true)]
    pub(crate) exit_with_parent: Option<u32>,
    /// Print the rows of the table in docs/reference/settings.md
    #[arg(long, hide = true)]
    print_reference: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CommonSettings {
    #[command(flatten)]
    pub(crate) log: LogSettings,
    #[command(flatten)]
    pub(crate) metrics: MetricsSettings,
    #[command(flatten)]
    pub(crate) hosts: HostSettings,
    #[command(flatten)]
    pub(crate) traces: TraceSettings,
}

/// Reason why settings are invalid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// System's error.
        source: std::io::Error,
    },
    /// Invalid TOML, an unknown key, or an invalid value.
    #[error("{}, line {line}: {message}", path.display())]
    Parse {
        /// Path of the file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Description.
        message: String,
    },
}

pub(crate) fn read<S: Args>(
    command: Command,
    arguments: Vec<OsString>,
) -> Result<(ProcessArguments, CommonSettings, S), SettingsError> {
    let settings = S::augment_args(CommonSettings::augment_args(Command::new("settings")));
    let process = ProcessArguments::augment_args(Command::new("process"));
    let command = without_empty_variables(
        command.args(process.get_arguments()).args(settings.get_arguments()),
    );
    let matches = layered(command, &settings, arguments)?.unwrap_or_else(|error| error.exit());
    let process: ProcessArguments = parsed(&matches);
    if process.print_reference {
        let _ = write!(io::stdout(), "{}", reference(&settings));
        std::process::exit(0);
    }
    Ok((process, parsed(&matches), parsed(&matches)))
}

/// Makes empty environment variables count as unset.
pub fn without_empty_variables(command: Command) -> Command {
    let is_empty = |argument: &clap::Arg| {
        argument.get_env().and_then(std::env::var_os).is_some_and(|value| value.is_empty())
    };
    let ids: Vec<_> = command
        .get_arguments()
        .filter(|argument| is_empty(argument))
        .map(|a| a.get_id().clone())
        .collect();
    let command = ids.into_iter().fold(command, |command, id| {
        command.mut_arg(id, |argument| argument.env(clap::builder::Resettable::Reset))
    });
    let names: Vec<_> = command.get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
    names
        .into_iter()
        .fold(command, |command, name| command.mut_subcommand(name, without_empty_variables))
}

fn reference(settings: &Command) -> String {
    let mut rows = String::new();
    for argument in settings.get_arguments() {
        let Some(flag) = argument.get_long() else { continue };
        let values: Vec<_> = argument
            .get_value_names()
            .unwrap_or_default()
            .iter()
            .map(|name| name.as_str())
            .collect();
        let variable =
            argument.get_env().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let mut help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        for default in argument.get_default_values() {
            help.push_str(&format!(" [default: {}]", default.to_string_lossy()));
        }
        rows.push_str(&format!("| `--{flag} {}` | `{variable}` | {help} |\n", values.join(" ")));
    }
    rows
}

fn parsed<T: FromArgMatches>(matches: &ArgMatches) -> T {
    T::from_arg_matches(matches).unwrap_or_else(|error| error.exit())
}

fn layered(
    command: Command,
    settings: &Command,
    arguments: Vec<OsString>,
) -> Result<Result<ArgMatches, clap::Error>, SettingsError> {
    let matches = match command.clone().try_get_matches_from(&arguments) {
        Ok(matches) => matches,
        Err(error) => return Ok(Err(error)),
    };
    let Some(path) = matches.get_one::<PathBuf>("config") else { return Ok(Ok(matches)) };
    let mut command = command;
    for (id, value) in read_file(path, settings)? {
        command = command.mut_arg(id, |argument| argument.default_value(value));
    }
    Ok(command.try_get_matches_from(arguments))
}

fn read_file(path: &Path, settings: &Command) -> Result<Vec<(String, String)>, SettingsError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| SettingsError::Read { path: path.to_owned(), source })?;
    let wrong = |span: Option<Range<usize>>, message: String| {
        let before = span.and_then(|span| text.get(..span.start)).unwrap_or("");
        let line = before.matches('\n').count() + 1;
        SettingsError::Parse { path: path.to_owned(), line, message }
    };
    let table = DeTable::parse(&text).map_err(|error| {
        wrong(error.span(), error.message().lines().collect::<Vec<_>>().join("; "))
    })?;
    let mut set = Vec::new();
    for (key, value) in table.get_ref() {
        let value =
            value_as_text(value.get_ref()).and_then(|value| check(settings, key.get_ref(), value));
        set.push(value.map_err(|message| wrong(Some(key.span()), message))?);
    }
    Ok(set)
}

fn value_as_text(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Ok(number.to_string()),
            Err(error) => Err(format!("{number}: {error}")),
        },
        DeValue::Boolean(is_set) => Ok(is_set.to_string()),
        DeValue::Array(values) => {
            let values: Vec<String> = values
                .iter()
                .map(|value| value_as_text(value.get_ref()))
                .collect::<Result<_, _>>()?;
            Ok(values.join(","))
        }
        _ => Err("a value is a text, a whole number, true, false, or a list of them".to_owned()),
    }
}

fn check(settings: &Command, key: &str, value: String) -> Result<(String, String), String> {
    let argument = settings.get_arguments().find(|argument| argument.get_long() == Some(key));
    let argument = argument.ok_or_else(|| format!("there is no setting {key:?}"))?;
    let alone = Command::new("file").no_binary_name(true).arg(argument.clone().env(None));
    match alone.try_get_matches_from([format!("--{key}={value}")]) {
        Ok(_) => Ok((argument.get_id().to_string(), value)),
        Err(error) => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            Err(line.trim_start_matches("error: ").to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Duration;

    use super::*;
    use crate::{Security, Size, TimeSpan};

    #[derive(Debug, clap::Args)]
    struct Settings {
        #[arg(long, value_name = "SIZE")]
        memory: Option<Size>,
        #[arg(long)]
        node_grace: Option<TimeSpan>,
        #[arg(long, value_delimiter = ',')]
        labels: Option<Vec<String>>,
        #[arg(long)]
        name: Option<String>,
        #[command(flatten)]
        security: Security,
    }

    fn read_with(file: &str, arguments: &[&str]) -> Result<(LogSettings, Settings), SettingsError> {
        let mut config = tempfile::NamedTempFile::new().unwrap();
        config.write_all(file.as_bytes()).unwrap();
        let path = config.path().to_str().unwrap();
        let arguments = [&["daemon", "--config", path], arguments].concat();
        read(Command::new("daemon"), arguments.iter().map(OsString::from).collect())
            .map(|(_, common, settings)| (common.log, settings))
    }

    #[test]
    fn flags_override_the_file_and_the_file_overrides_defaults() {
        let file = "memory = \"1GiB\"\nnode-grace = \"2s\"\nname = 'file'\nlabels = ['a=1', 'b=2']\ninsecure = true";
        let (log, settings) = read_with(file, &["--name", "flag"]).unwrap();
        assert_eq!(settings.memory, Some(Size(1 << 30)));
        assert_eq!(settings.node_grace, Some(TimeSpan(Duration::from_secs(2))));
        assert_eq!(settings.name.as_deref(), Some("flag"));
        assert_eq!(settings.labels.unwrap(), ["a=1", "b=2"]);
        assert_eq!(settings.security.insecure, Some(true));
        assert_eq!(log.log, "info");
        let (log, settings) =
            read_with("memory = 0x1_000\nlog = 'debug'", &["--insecure"]).unwrap();
        assert_eq!((settings.memory, settings.name), (Some(Size(4096)), None));
        assert_eq!((settings.security.insecure, log.log.as_str()), (Some(true), "debug"));
    }

    #[test]
    fn the_environment_overrides_the_file() {
        #[derive(Debug, clap::Args)]
        struct Environment {
            #[arg(long, env = "PATH")]
            path: Option<String>,
        }
        let mut config = tempfile::NamedTempFile::new().unwrap();
        config.write_all(b"path = 'file'").unwrap();
        let arguments: [OsString; 3] = ["daemon".into(), "--config".into(), config.path().into()];
        let (_, _, settings) =
            read::<Environment>(Command::new("daemon"), arguments.to_vec()).unwrap();
        assert_eq!(settings.path, std::env::var("PATH").ok());
    }

    #[test]
    fn settings_errors_name_the_key_the_value_and_the_line() {
        let text = |file| read_with(file, &[]).unwrap_err().to_string();
        let unknown = text("memory = 1\nmemmory = 2\n");
        assert!(unknown.contains("line 2") && unknown.contains("memmory"), "{unknown}");
        let not_for_files = text("print-addresses = true");
        assert!(not_for_files.contains("print-addresses"), "{not_for_files}");
        let bad_size = text("\nmemory = \"lots\"");
        assert!(bad_size.contains("line 2") && bad_size.contains("lots"), "{bad_size}");
        assert!(bad_size.contains("memory") && bad_size.contains("not a size"), "{bad_size}");
        let bad_span = text("node-grace = \"soon\"");
        assert!(bad_span.contains("soon"), "{bad_span}");
        for file in [
            "memory = = 1",
            "memory = 1\nmemory = 2",
            "memory = 1.5",
            "[memory]\nsize = 1",
            "insecure = 'maybe'",
        ] {
            assert_eq!(text(file).lines().count(), 1, "{file}");
        }
        let path = Path::new("/nonexistent/hoplite.toml");
        let missing = read_file(path, &Command::new("settings")).unwrap_err();
        assert!(missing.to_string().contains("/nonexistent/hoplite.toml"));
    }
}
