use std::fs;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use hoplite_net::{Authority, IssuedCertificate, Tls, TlsFiles, TransportKind};
use tempfile::TempDir;

#[path = "../suite.rs"]
mod suite;

mod certificates;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn today() -> Range<SystemTime> {
    let now = SystemTime::now();
    now - DAY..now + DAY
}

struct Certificates {
    place: TempDir,
    authority: Authority,
}

impl Certificates {
    fn new() -> Self {
        let certificates = Self {
            place: tempfile::tempdir().unwrap(),
            authority: Authority::new(today()).unwrap(),
        };
        write(&certificates.place.path().join("ca.pem"), &certificates.authority.cert);
        certificates
    }

    fn files(&self, file: &str, issued: &IssuedCertificate) -> TlsFiles {
        let path = |suffix: &str| self.place.path().join(format!("{file}{suffix}"));
        let files = TlsFiles { cert: path(".pem"), key: path("-key.pem"), ca: path(".ca.pem") };
        write(&files.cert, &issued.cert);
        write(&files.key, &issued.key);
        write(&files.ca, &self.authority.cert);
        files
    }

    fn issue(&self, name: &str, validity: Range<SystemTime>) -> IssuedCertificate {
        self.authority.issue(&[name.to_owned()], validity).unwrap()
    }

    fn tls(&self, name: &str) -> Tls {
        self.tls_at(&[name])
    }

    fn tls_at(&self, names: &[&str]) -> Tls {
        let all: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let issued = self.authority.issue(&all, today()).unwrap();
        Tls::read(self.files(names[0], &issued), None).unwrap()
    }
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn transport() -> TransportKind {
    static TLS: LazyLock<(Certificates, Tls)> = LazyLock::new(|| {
        let certificates = Certificates::new();
        let tls = certificates.tls_at(&["127.0.0.1", "127.0.0.2"]);
        (certificates, tls)
    });
    TransportKind::Tls(TLS.1.clone())
}
