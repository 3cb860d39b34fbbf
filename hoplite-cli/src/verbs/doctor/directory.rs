use std::net::SocketAddr;
use std::time::Duration;

use hoplite_core::Error;
use hoplite_net::opening::{Caller, OpeningError};
use hoplite_net::{Credentials, Route, cause, handshake_error, speaks_tls};
use hoplite_proto::status::from_status;
use hoplite_proto::v1::directory_client::DirectoryClient;
use hoplite_proto::v1::{StatusReply, StatusRequest};
use rustls::{AlertDescription, CertificateError};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout, timeout_at};
use tonic::Status;
use tonic::transport::Endpoint;

use super::{Finding, Health, finding};
use crate::output;

const CALL_TIMEOUT: Duration = Duration::from_millis(800);
const DIAGNOSIS_TIMEOUT: Duration = Duration::from_millis(500);

const NO_ANSWER: &str = "does not answer: a firewall, or a host that is down?";
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// Queries the shard at `address`; without usable credentials, only connects.
pub(super) async fn shard(address: &str, credentials: Option<&Credentials>) -> Finding {
    let what = format!("directory {address}");
    let found = match credentials {
        Some(credentials) => ask(address, credentials).await,
        None => match connect(address, Instant::now() + CALL_TIMEOUT).await {
            Ok((_, peer)) => {
                let says = "and was not queried: the credentials cannot be used";
                Ok((Health::Unknown, format!("is reached at {peer}, {says}")))
            }
            Err(says) => Err(says),
        },
    };
    let (verdict, says) = found.unwrap_or_else(|says| (Health::Bad, says));
    finding(what, verdict, says)
}

async fn ask(address: &str, credentials: &Credentials) -> Result<(Health, String), String> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"));
    let endpoint = endpoint.map_err(|_| "is not HOST:PORT".to_owned())?;
    let channel = credentials.channel(&endpoint, Caller::default(), Route::Network);
    let mut client = DirectoryClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES);
    match timeout(CALL_TIMEOUT, client.status(StatusRequest { loads: false })).await {
        Ok(Ok(reply)) => Ok(answered(&reply.into_inner())),
        Ok(Err(status)) => Err(refusal(address, credentials, &status).await),
        Err(_) => Err(diagnosis(address, credentials, "does not answer in time").await),
    }
}

fn answered(reply: &StatusReply) -> (Health, String) {
    let own = env!("CARGO_PKG_VERSION");
    let stores = reply.nodes.iter().filter(|node| node.connected).count() as u64;
    let says =
        format!("answers, for cluster {:?} with {}", reply.cluster, output::count(stores, "store"));
    if reply.version == own {
        return (Health::Good, says);
    }
    let version = reply.version.escape_debug();
    (Health::Doubtful, format!("{says}; it is of version {version}, and this is {own}"))
}

async fn refusal(address: &str, credentials: &Credentials, status: &Status) -> String {
    if let Some(error) = cause::<OpeningError>(status).and_then(OpeningError::refusal) {
        let advice = match (error, &credentials.token) {
            (Error::PermissionDenied { .. }, Some(_)) => {
                ": name the token of the directory, with --token-file"
            }
            (Error::PermissionDenied { .. }, None) => ": name it, with --token-file",
            _ => "",
        };
        return format!("and this host do not accept each other: {error}{advice}");
    }
    if let Some(error) = cause::<rustls::Error>(status) {
        return unshaken(error);
    }
    let answer = format!("does not answer as a directory does: {}", from_status(status));
    diagnosis(address, credentials, &answer).await
}

fn unshaken(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidMessage(_) => {
            "does not speak TLS, but this host has certificates: remove them here, or set them there"
                .to_owned()
        }
        rustls::Error::InvalidCertificate(error) => unaccepted(error),
        rustls::Error::AlertReceived(alert) => alerted(*alert),
        error => format!("breaks off the handshake of TLS: {error}"),
    }
}

fn unaccepted(error: &CertificateError) -> String {
    let why = match error {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "it does not come from the authority that --tls-ca names here"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "its names include neither this host or address nor --tls-name"
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "it has expired",
        error => return format!("shows a certificate that this host does not accept: {error}"),
    };
    format!("shows a certificate that this host does not accept: {why}")
}

fn alerted(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::ProtocolVersion => {
            "speaks TLS older than 1.3: it is no directory".to_owned()
        }
        AlertDescription::NoApplicationProtocol => {
            "speaks TLS, but is no directory: is it the port of the data plane or of the dashboard?"
                .to_owned()
        }
        alert => format!(
            "refuses the certificate of this host ({alert:?}): it trusts another authority, or \
             wants a name"
        ),
    }
}

/// Explains a missing answer. Returns `otherwise` if connecting and TLS work.
async fn diagnosis(address: &str, credentials: &Credentials, otherwise: &str) -> String {
    let deadline = Instant::now() + DIAGNOSIS_TIMEOUT;
    let (stream, peer) = match connect(address, deadline).await {
        Ok(reached) => reached,
        Err(says) => return says,
    };
    if let Some(tls) = &credentials.tls {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        // A shard that refuses a certificate often just closes.
        if let Ok(Some(error)) = timeout_at(deadline, handshake_error(tls, host, stream)).await {
            return unshaken(&error);
        }
    } else if timeout_at(deadline, speaks_tls(stream)).await == Ok(true) {
        return "speaks TLS, but this host has no certificates: set --tls-cert, --tls-key and --tls-ca"
            .to_owned();
    }
    format!("is reached at {peer}, but {otherwise}")
}

async fn connect(address: &str, deadline: Instant) -> Result<(TcpStream, SocketAddr), String> {
    let reached = async {
        let found: Vec<_> = match lookup_host(address).await {
            Ok(found) => found.collect(),
            Err(error) => return Err(format!("cannot be looked up: {error}")),
        };
        let connected = async {
            let stream = TcpStream::connect(found.as_slice()).await?;
            let peer = stream.peer_addr()?;
            Ok::<_, std::io::Error>((stream, peer))
        };
        connected.await.map_err(|error| format!("cannot be reached: {error}; is it running there?"))
    };
    timeout_at(deadline, reached).await.unwrap_or_else(|_| Err(NO_ANSWER.to_owned()))
}
