use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail, ensure};
use hoplite_net::{Authority, Tls, TlsFiles};
use serde::Serialize;

use crate::output;

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Longer than a certificate's, because replacing an authority takes more work.
const AUTHORITY_DAYS: u32 = 3650;
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(3600);
const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

const EXAMPLES: &str = "Example, for two machines:
  hoplite certs certs node-1,10.0.0.1 node-2,10.0.0.2
      makes certs/ca.pem, certs/ca-key.pem, certs/node-1.pem, certs/node-1-key.pem, and so on
  hoplite-store --listen 10.0.0.1:7400 --tls-cert certs/node-1.pem --tls-key certs/node-1-key.pem --tls-ca certs/ca.pem

A machine needs its own certificate, its own key and ca.pem. Whoever has ca-key.pem can make members: keep it elsewhere.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Directory for the files; an existing authority there is used, otherwise one is created
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
    /// For each certificate the host names and addresses of its daemon; the first one names the
    /// files
    #[arg(value_name = "NAME,...", required = true)]
    daemons: Vec<String>,
    /// Validity of the certificates, in days
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=AUTHORITY_DAYS as i64))]
    days: u32,
    /// Replace existing certificates; an authority is never replaced
    #[arg(long)]
    force: bool,
    /// Print the files and their names as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Made {
    certificate: PathBuf,
    key: PathBuf,
    /// Names in a certificate; empty for the authority.
    names: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let Arguments { directory, daemons, days, force, json } = arguments;
    let daemons = daemons
        .iter()
        .map(|names| Daemon::parse(directory, names))
        .collect::<Result<Vec<_>, _>>()?;
    if !force {
        for path in daemons.iter().flat_map(|daemon| [&daemon.files.cert, &daemon.files.key]) {
            ensure!(!path.exists(), "{} exists already: say --force to replace it", path.display());
        }
    }
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .with_context(|| format!("cannot make the directory {}", directory.display()))?;
    let (authority, mut made) = authority(directory)?;
    for Daemon { names, files } in daemons {
        let issued = authority.issue(&names, validity(*days)).with_context(|| names.join(", "))?;
        write(&files.key, &issued.key)?;
        write(&files.cert, &issued.cert)?;
        Tls::read(files.clone(), None)?;
        made.push(Made { certificate: files.cert, key: files.key, names });
    }
    let mut stdout = io::stdout().lock();
    if *json {
        return Ok(output::json(&mut stdout, &made)?);
    }
    for Made { certificate, names, .. } in &made {
        let names = if names.is_empty() { "the authority".to_owned() } else { names.join(", ") };
        writeln!(stdout, "{}: {names}", certificate.display())?;
    }
    Ok(())
}

struct Daemon {
    names: Vec<String>,
    files: TlsFiles,
}

impl Daemon {
    fn parse(directory: &Path, names: &str) -> anyhow::Result<Self> {
        let mut names: Vec<String> = names.split(',').map(str::to_owned).collect();
        let is_name = |name: &String| {
            !name.is_empty()
                && name
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':'))
        };
        if let Some(wrong) = names.iter().find(|name| !is_name(name)) {
            bail!("{wrong:?} is neither a host name nor an address");
        }
        let first = names[0].replace(':', "_");
        ensure!(
            !matches!(first.as_str(), "ca" | "." | ".."),
            "the files of {first:?} would have the names of others"
        );
        for name in LOOPBACK.map(str::to_owned) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let file = |suffix: &str| directory.join(format!("{first}{suffix}"));
        let files =
            TlsFiles { cert: file(".pem"), key: file("-key.pem"), ca: directory.join("ca.pem") };
        Ok(Self { names, files })
    }
}

fn authority(directory: &Path) -> anyhow::Result<(Authority, Vec<Made>)> {
    let (cert, key) = (directory.join("ca.pem"), directory.join("ca-key.pem"));
    let read = |path: &Path| {
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
    };
    match (cert.exists(), key.exists()) {
        (true, true) => Ok((Authority { cert: read(&cert)?, key: read(&key)? }, Vec::new())),
        (false, false) => {
            let authority = Authority::new(validity(AUTHORITY_DAYS))?;
            write(&key, &authority.key)?;
            write(&cert, &authority.cert)?;
            Ok((authority, vec![Made { certificate: cert, key, names: Vec::new() }]))
        }
        (true, false) => {
            bail!("{} is missing: no certificate can be made without it", key.display())
        }
        (false, true) => bail!("{} is missing: it goes with {}", cert.display(), key.display()),
    }
}

fn validity(days: u32) -> Range<SystemTime> {
    let now = SystemTime::now();
    now - CLOCK_DIFFERENCE..now + DAY * days
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let create = || {
        let _ = fs::remove_file(&new);
        let mut file: File =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    create().with_context(cannot)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn made(directory: &Path, daemons: &[&str], force: bool) -> anyhow::Result<()> {
        let daemons = daemons.iter().map(|&names| names.to_owned()).collect();
        run(&Arguments { directory: directory.to_owned(), daemons, days: 30, force, json: false })
    }

    #[test]
    fn an_authority_is_made_once_and_used_again() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("deep/er");
        made(&directory, &["node-1,10.0.0.1", "fd00::1"], false).unwrap();
        let read = |file: &str| fs::read_to_string(directory.join(file)).unwrap();
        let (ca, first) = (read("ca.pem"), read("node-1.pem"));
        made(&directory, &["node-2"], false).unwrap();
        assert_eq!(read("ca.pem"), ca);
        for name in ["node-1", "fd00__1", "node-2"] {
            let file = |suffix: &str| directory.join(format!("{name}{suffix}"));
            let files = TlsFiles {
                cert: file(".pem"),
                key: file("-key.pem"),
                ca: directory.join("ca.pem"),
            };
            Tls::read(files, None).unwrap();
        }
        for entry in fs::read_dir(&directory).unwrap() {
            assert_eq!(entry.unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o600);
        }
        let refused = made(&directory, &["node-3", "node-1"], false).unwrap_err();
        assert!(refused.to_string().contains("--force"), "{refused}");
        assert!(!directory.join("node-3.pem").exists(), "nothing is made if not all can be");
        assert_eq!(read("node-1.pem"), first);
        made(&directory, &["node-1"], true).unwrap();
        assert_ne!(read("node-1.pem"), first);
        assert_eq!(read("ca.pem"), ca);
    }

    #[test]
    fn an_authority_without_its_key_or_with_another_is_refused() {
        let place = tempfile::tempdir().unwrap();
        made(place.path(), &["a"], false).unwrap();
        let key = place.path().join("ca-key.pem");
        let another = Authority::new(validity(1)).unwrap();
        fs::write(&key, another.key).unwrap();
        assert!(made(place.path(), &["b"], false).is_err());
        fs::remove_file(&key).unwrap();
        assert!(made(place.path(), &["c"], false).unwrap_err().to_string().contains("ca-key.pem"));
    }

    #[test]
    fn names_that_cannot_be_are_refused_before_anything_is_made() {
        let place = tempfile::tempdir().unwrap();
        for wrong in ["", ",", "a,", "../a", "a b", "a/b", "ca", "..", "ü"] {
            assert!(made(&place.path().join("new"), &[wrong], false).is_err(), "{wrong}");
        }
        assert!(!place.path().join("new").exists());
    }
}
