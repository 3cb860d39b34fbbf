use std::error::Error;
use std::fs::File;
use std::io::Read;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::time::{Duration, SystemTime};

use hoplite_daemon::Security;
use hoplite_net::{
    CertificateFacts, Credentials, FileError, SecurityError, Tls, TlsError, TlsFiles, Token,
    TokenError, begins_with_byte_order_mark, cause,
};

use super::{Finding, Health, finding};

const SOON: Duration = Duration::from_secs(7 * 24 * 3600);

/// Checks each file with the daemons' own functions. Returns findings, and the credentials if
/// daemons would accept them.
pub(super) fn examine(security: &Security) -> (Vec<Finding>, Option<Credentials>) {
    let mut findings = Vec::new();
    if let Some(path) = &security.token_file {
        findings.push(match Token::read(path) {
            Ok(_) => readable_token(path),
            Err(error) => bad_token(path, &error),
        });
    }
    findings.extend(tls(security));
    match security.credentials() {
        Ok(credentials) => (findings, Some(credentials)),
        Err(error) => {
            if findings.iter().all(|finding| finding.verdict != Health::Bad) {
                findings.push(finding("credentials", Health::Bad, chain(&error)));
            }
            (findings, None)
        }
    }
}

fn readable_token(path: &Path) -> Finding {
    let mut start = Vec::new();
    let read = File::open(path).and_then(|file| file.take(4).read_to_end(&mut start));
    let path = path.display();
    if read.is_ok() && begins_with_byte_order_mark(&start) {
        let says = format!(
            "{path} begins with a byte-order mark, which is part of the token: without the mark it is another \
             token; save it again as plain text"
        );
        return finding("token", Health::Doubtful, says);
    }
    finding("token", Health::Good, path.to_string())
}

/// Checks that other daemons accept the certificate at the advertised or listening address.
pub(super) fn reached_at(
    tls: &Tls,
    advertised: &[String],
    listened: &[SocketAddr],
) -> Vec<Finding> {
    let what = |place: &str| format!("certificate at {place}");
    let mut findings = Vec::new();
    for place in advertised {
        findings.push(match place.to_socket_addrs() {
            Ok(addresses) => {
                let refusal = addresses
                    .map(|address| tls.check_reached_at(&address.ip().to_canonical().to_string()))
                    .find_map(Result::err);
                match refusal {
                    None => finding(
                        what(place),
                        Health::Good,
                        "is for the address at which others reach it",
                    ),
                    Some(error) => finding(what(place), Health::Bad, error.to_string()),
                }
            }
            Err(error) => {
                finding(what(place), Health::Bad, format!("cannot be looked up: {error}"))
            }
        });
    }
    for address in
        listened.iter().filter(|address| advertised.is_empty() && !address.ip().is_unspecified())
    {
        if let Err(error) = tls.check_reached_at(&address.ip().to_canonical().to_string()) {
            let says =
                format!("{error}; a directory that others reach by another name does not need it");
            findings.push(finding(what(&address.to_string()), Health::Doubtful, says));
        }
    }
    findings
}

fn bad_token(path: &Path, error: &TokenError) -> Finding {
    let says = match error {
        TokenError::TooShort { .. } => {
            let make = format!("head -c 32 /dev/urandom | base64 > {}", path.display());
            format!("{}: {error}; make another one: {make}", path.display())
        }
        error => advised(error),
    };
    finding("token", Health::Bad, says)
}

fn tls(security: &Security) -> Vec<Finding> {
    let Security { tls_cert, tls_key, tls_ca, tls_name, .. } = security;
    let named = [tls_cert, tls_key, tls_ca];
    if named.iter().all(|path| path.is_none()) && tls_name.is_none() {
        return Vec::new();
    }
    let mut cert = read("certificate", tls_cert.as_deref(), own);
    let mut ca = read("authority", tls_ca.as_deref(), authority);
    let mut key = tls_key.as_deref().map_or_else(
        || missing("key"),
        |path| finding("key", Health::Good, path.display().to_string()),
    );
    let path = |path: &Option<_>| path.clone().unwrap_or_default();
    let files = TlsFiles { cert: path(tls_cert), key: path(tls_key), ca: path(tls_ca) };
    let is_read =
        |finding: &Finding, path: &Option<_>| path.is_some() && finding.verdict != Health::Bad;
    let is_expired = is_expired(&files.cert);
    if tls_key.is_some()
        && let Err(error) = files.check_key()
        // Otherwise, the finding of the certificate names the problem.
        && (is_read(&cert, tls_cert) || is_expired || is_of(&error, &files.key))
    {
        key = finding("key", Health::Bad, advised(&error));
    }
    if is_read(&cert, tls_cert)
        && is_read(&ca, tls_ca)
        && let Err(error) = files.check_trust(tls_name.as_deref())
    {
        match &error {
            TlsError::Authority { .. } => ca = finding("authority", Health::Bad, advised(&error)),
            TlsError::Unusable { path, .. } if *path == files.ca && files.ca != files.cert => {
                ca = finding("authority", Health::Bad, advised(&error));
            }
            error => {
                cert = finding(
                    "certificate",
                    Health::Bad,
                    distrusted(error, &files, tls_name.as_deref()),
                )
            }
        }
    }
    vec![cert, key, ca]
}

fn missing(what: &str) -> Finding {
    finding(what, Health::Bad, format!("not named: {}", SecurityError::Incomplete))
}

fn read(
    what: &str,
    path: Option<&Path>,
    judge: impl FnOnce(&Path, &[CertificateFacts]) -> Finding,
) -> Finding {
    let Some(path) = path else { return missing(what) };
    match CertificateFacts::read_all(path) {
        Err(error) => finding(what, Health::Bad, advised(&error)),
        Ok(facts) if facts.is_empty() => {
            let says = format!("{}: its validity cannot be read", path.display());
            finding(what, Health::Unknown, says)
        }
        Ok(facts) => judge(path, &facts),
    }
}

fn own(path: &Path, facts: &[CertificateFacts]) -> Finding {
    let own = &facts[0];
    let (now, path) = (SystemTime::now(), path.display());
    let is_for = if own.names.is_empty() { "nobody".to_owned() } else { own.names.join(", ") };
    let (verdict, says) = if own.validity.end < now {
        (
            Health::Bad,
            format!("{path} expired on {}: make a new one (hoplite certs)", date(own.validity.end)),
        )
    } else if own.validity.start > now {
        (
            Health::Bad,
            format!("{path} is valid from {} on: is the clock right?", date(own.validity.start)),
        )
    } else if own.validity.end < now + SOON {
        let says = format!("{path} expires within a week, on {}", date(own.validity.end));
        (Health::Doubtful, format!("{says}: make a new one (hoplite certs); daemons take it over"))
    } else {
        (Health::Good, format!("{path}, for {is_for}, valid until {}", date(own.validity.end)))
    };
    finding("certificate", verdict, says)
}

/// Checks the authority's file. Daemons use only its key, so an expired one is only `Doubtful`.
fn authority(path: &Path, facts: &[CertificateFacts]) -> Finding {
    let (now, path) = (SystemTime::now(), path.display());
    let last = facts.iter().map(|facts| facts.validity.end).max().unwrap_or(now);
    if last < now {
        let says =
            format!("{path} expired on {}: daemons take it, other programs will not", date(last));
        finding("authority", Health::Doubtful, says)
    } else if last < now + SOON {
        let says = format!("{path} expires within a week, on {}", date(last));
        finding("authority", Health::Doubtful, says)
    } else {
        finding("authority", Health::Good, format!("{path}, valid until {}", date(last)))
    }
}

fn is_expired(cert: &Path) -> bool {
    let facts = CertificateFacts::read_all(cert).unwrap_or_default();
    facts.first().is_some_and(|own| !(own.validity.contains(&SystemTime::now())))
}

fn distrusted(error: &TlsError, files: &TlsFiles, name: Option<&str>) -> String {
    use rustls::CertificateError::{
        BadSignature, InvalidPurpose, InvalidPurposeContext, NotValidForName,
        NotValidForNameContext, UnknownIssuer,
    };
    let (cert, ca) = (files.cert.display(), files.ca.display());
    match cause::<rustls::Error>(error) {
        Some(rustls::Error::InvalidCertificate(UnknownIssuer | BadSignature)) => {
            format!(
                "{cert} does not come from the authority in {ca}: name the authority that issued \
                 it, or issue a new one"
            )
        }
        Some(rustls::Error::InvalidCertificate(
            NotValidForName | NotValidForNameContext { .. },
        )) => {
            let name = name.unwrap_or_default();
            format!(
                "{cert} is not for {name}, which --tls-name demands of all daemons: issue one for \
                 that too"
            )
        }
        Some(rustls::Error::InvalidCertificate(InvalidPurpose | InvalidPurposeContext { .. })) => {
            format!(
                "{cert} is not for servers and clients: a daemon is both, so issue one for both"
            )
        }
        _ => advised(error),
    }
}

fn is_of(error: &TlsError, path: &Path) -> bool {
    match error {
        TlsError::File(
            FileError::Read { path: of, .. }
            | FileError::NotPrivate { path: of, .. }
            | FileError::NotOurs { path: of, .. }
            | FileError::Unlikely { path: of, .. },
        )
        | TlsError::Missing { path: of, .. }
        | TlsError::Key { path: of, .. } => of == path,
        _ => false,
    }
}

fn advised(error: &(dyn Error + 'static)) -> String {
    let tls = error.downcast_ref::<TlsError>();
    let file = match (error.downcast_ref::<TokenError>(), tls) {
        (Some(TokenError::File(file)), _) | (_, Some(TlsError::File(file))) => Some(file),
        _ => None,
    };
    let advice = match file {
        Some(FileError::Read { .. }) => "the user of the daemon must be able to read it",
        Some(FileError::NotOurs { .. }) => {
            "run the doctor as the user of the daemon, who must own it"
        }
        Some(FileError::Unlikely { .. }) => "name the file itself",
        _ => match tls {
            Some(TlsError::KeyMismatch { .. }) => "name the two that were made together",
            Some(TlsError::Missing { .. }) => "are the files mixed up?",
            _ => return chain(error),
        },
    };
    format!("{}; {advice}", chain(error))
}

pub(super) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut says = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let cause = error.to_string();
        if !says.ends_with(&cause) {
            says = format!("{says}: {cause}");
        }
        next = error.source();
    }
    says
}

fn date(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;
    use std::time::UNIX_EPOCH;

    use hoplite_net::{Authority, IssuedCertificate};
    use tempfile::TempDir;

    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    struct Place(TempDir);

    impl Place {
        fn write(&self, name: &str, text: &str) -> Option<PathBuf> {
            let path = self.0.path().join(name);
            let _ = fs::remove_file(&path);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            Some(path)
        }

        fn pipe(&self, name: &str) -> Option<PathBuf> {
            let path = self.0.path().join(name);
            let mode = rustix::fs::Mode::from_raw_mode(0o600);
            rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0)
                .unwrap();
            Some(path)
        }

        fn tls(&self, issued: &IssuedCertificate, ca: &Authority) -> Security {
            Security {
                tls_cert: self.write("cert.pem", &issued.cert),
                tls_key: self.write("key.pem", &issued.key),
                tls_ca: self.write("ca.pem", &ca.cert),
                ..Security::default()
            }
        }
    }

    fn place() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn authority(days: u32) -> Authority {
        Authority::new(UNIX_EPOCH..SystemTime::now() + DAY * days).unwrap()
    }

    fn issue(authority: &Authority, validity: std::ops::Range<SystemTime>) -> IssuedCertificate {
        authority.issue(&["node".to_owned()], validity).unwrap()
    }

    fn year(authority: &Authority) -> IssuedCertificate {
        let now = SystemTime::now();
        issue(authority, now - DAY..now + DAY * 365)
    }

    /// Checks the findings, and that `examine` and daemons agree on the files.
    #[track_caller]
    fn assert_found(security: &Security, expected: &[(&str, Health, &str)]) {
        let (findings, credentials) = examine(security);
        let found: Vec<_> =
            findings.iter().map(|found| (found.what.as_str(), found.verdict)).collect();
        assert_eq!(
            found,
            expected.iter().map(|row| (row.0, row.1)).collect::<Vec<_>>(),
            "{findings:?}"
        );
        for (found, (.., says)) in findings.iter().zip(expected) {
            assert!(found.says.contains(says), "{says} is not in {found:?}");
        }
        let is_bad = findings.iter().any(|found| found.verdict == Health::Bad);
        assert_eq!(security.credentials().is_err(), is_bad);
        assert_eq!(credentials.is_none(), is_bad);
    }

    #[test]
    fn a_token_is_judged_as_daemons_do() {
        let place = place();
        let token = |token_file| Security { token_file, ..Security::default() };
        assert_found(&token(None), &[]);
        let good = place.write("good", "sixteen bytes ok\n");
        assert_found(&token(good.clone()), &[("token", Health::Good, "good")]);
        let bad = |path, says| assert_found(&token(path), &[("token", Health::Bad, says)]);
        bad(place.write("short", "12345\n"), "this one has 5; make another one");
        bad(Some(place.0.path().join("away")), "No such file");
        bad(
            Some("/dev/zero".into()),
            "not a regular file of at most 4096 bytes; name the file itself",
        );
        bad(place.pipe("pipe"), "not a regular file");
        bad(Some(place.0.path().to_owned()), "not a regular file");
        let marked = place.write("marked", "\u{feff}sixteen bytes ok\n");
        assert_found(&token(marked), &[("token", Health::Doubtful, "byte-order mark")]);
        let path = good.clone().unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        bad(good.clone(), "chmod 600 it");
        if rustix::process::geteuid().is_root() {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            std::os::unix::fs::chown(&path, Some(4_000_000), None).unwrap();
            bad(good, "belongs to user 4000000");
        }
    }

    #[test]
    fn certificates_are_judged_as_daemons_do() {
        use Health::{Bad, Doubtful, Good};
        let place = place();
        let (ours, theirs) = (authority(3000), authority(3000));
        let now = SystemTime::now();
        let check =
            |security: &Security, cert: (Health, &str), key: (Health, &str), ca: (Health, &str)| {
                let rows = [("certificate", cert), ("key", key), ("authority", ca)];
                assert_found(security, &rows.map(|(what, (verdict, says))| (what, verdict, says)));
            };
        let (good, cert) = ((Good, ""), (Good, "for node, valid until"));
        check(&place.tls(&year(&ours), &ours), cert, good, (Good, "valid until"));
        let soon = issue(&ours, now - DAY..now + DAY * 3);
        check(&place.tls(&soon, &ours), (Doubtful, "expires within a week"), good, good);
        let past = issue(&ours, now - DAY * 2..now - DAY);
        check(&place.tls(&past, &ours), (Bad, "expired on"), good, good);
        let future = issue(&ours, now + DAY..now + DAY * 2);
        check(&place.tls(&future, &ours), (Bad, "is the clock right?"), good, good);
        check(
            &place.tls(&year(&ours), &theirs),
            (Bad, "does not come from the authority in"),
            good,
            good,
        );
        let old = Authority::new(UNIX_EPOCH..now - DAY).unwrap();
        check(&place.tls(&year(&old), &old), good, good, (Doubtful, "daemons take it"));

        let mixed = IssuedCertificate { key: year(&ours).key, ..year(&ours) };
        check(&place.tls(&mixed, &ours), cert, (Bad, "is not that of the certificate in"), good);
        let mixed = IssuedCertificate { key: year(&ours).key, ..past };
        check(&place.tls(&mixed, &ours), (Bad, "expired on"), (Bad, "is not that of"), good);
        let swapped = IssuedCertificate { cert: mixed.key, key: mixed.cert };
        let mixed_up = (Bad, "are the files mixed up?");
        check(&place.tls(&swapped, &ours), mixed_up, mixed_up, good);
        let named = |tls_name: &str| Security {
            tls_name: Some(tls_name.to_owned()),
            ..place.tls(&year(&ours), &ours)
        };
        let of_authority = IssuedCertificate { cert: ours.cert.clone(), key: ours.key.clone() };
        check(&place.tls(&of_authority, &ours), (Bad, "is that of an authority"), good, good);
        check(&named("node"), good, good, good);
        check(&named("cluster"), (Bad, "is not for cluster, which --tls-name demands"), good, good);
        check(&named("no name"), (Bad, "neither a host name nor an address"), good, good);
    }

    #[test]
    fn a_certificate_is_for_the_address_that_is_advertised() {
        let place = place();
        let ours = authority(3000);
        let tls = |names: &[&str], tls_name: Option<&str>| {
            let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
            let issued = ours.issue(&names, UNIX_EPOCH..SystemTime::now() + DAY * 30).unwrap();
            let security =
                Security { tls_name: tls_name.map(str::to_owned), ..place.tls(&issued, &ours) };
            security.credentials().unwrap().tls.unwrap()
        };
        let verdicts = |tls: &Tls, advertised: &[&str], listened: &[&str]| {
            let advertised: Vec<_> = advertised.iter().map(|&name| name.to_owned()).collect();
            let listened: Vec<SocketAddr> =
                listened.iter().map(|text| text.parse().unwrap()).collect();
            let found = reached_at(tls, &advertised, &listened);
            found.iter().map(|found| found.verdict).collect::<Vec<_>>()
        };
        let (named, addressed) = (tls(&["localhost"], None), tls(&["127.0.0.1", "::1"], None));
        assert_eq!(verdicts(&named, &["localhost:7400"], &[]), [Health::Bad]);
        assert_eq!(
            verdicts(&addressed, &["localhost:7400", "10.0.0.1:7400"], &["10.0.0.1:7400"]),
            [Health::Good, Health::Bad]
        );
        assert_eq!(verdicts(&tls(&["all"], Some("all")), &["127.0.0.1:7400"], &[]), [Health::Good]);
        assert_eq!(verdicts(&named, &["no port"], &[]), [Health::Bad]);
        assert_eq!(verdicts(&named, &[], &["127.0.0.1:7400", "0.0.0.0:7400"]), [Health::Doubtful]);
        assert_eq!(verdicts(&addressed, &[], &["127.0.0.1:7400", "0.0.0.0:7400"]), []);
    }

    #[test]
    fn files_of_certificates_that_are_none_are_told() {
        use Health::{Bad, Good};
        let place = place();
        let ours = authority(3000);
        let all = place.tls(&year(&ours), &ours);
        let endless = || Some(PathBuf::from("/dev/zero"));
        let row = |what, verdict, says| (what, verdict, says);
        for (security, at) in [
            (Security { tls_cert: endless(), ..all.clone() }, 0),
            (Security { tls_key: endless(), ..all.clone() }, 1),
            (Security { tls_ca: endless(), ..all.clone() }, 2),
            (Security { tls_cert: place.pipe("a"), ..all.clone() }, 0),
            (Security { tls_key: place.pipe("b"), ..all.clone() }, 1),
            (Security { tls_ca: place.pipe("c"), ..all.clone() }, 2),
        ] {
            let mut rows = ["certificate", "key", "authority"].map(|what| row(what, Good, ""));
            rows[at] = row(rows[at].0, Bad, "not a regular file");
            assert_found(&security, &rows);
        }
        for (security, at) in [
            (Security { tls_cert: None, ..all.clone() }, 0),
            (Security { tls_key: None, ..all.clone() }, 1),
            (Security { tls_ca: None, ..all.clone() }, 2),
        ] {
            let mut rows = ["certificate", "key", "authority"].map(|what| row(what, Good, ""));
            rows[at] = row(rows[at].0, Bad, "go together");
            assert_found(&security, &rows);
        }
        fs::set_permissions(all.tls_key.as_ref().unwrap(), fs::Permissions::from_mode(0o644))
            .unwrap();
        let rows = [("certificate", Good, ""), ("key", Bad, "chmod 600"), ("authority", Good, "")];
        assert_found(&all, &rows);
    }
}
