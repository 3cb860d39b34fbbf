//! Promises of docs/reference/versions.md about versions of the protocol.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use hoplite_core::{Error, ErrorCode, Version};
use hoplite_proto::status::from_status;
use hoplite_proto::v1::directory_client::DirectoryClient;
use hoplite_proto::v1::{ClientHello, Hello, ServerHello, ShardMessages, StoreMessages};
use hoplite_proto::{FILE_DESCRIPTOR_SET, PROTOCOL_VERSION, v1};
use hoplite_tests::cluster::Cluster;
use hoplite_tests::raw::{Kind, RawClient, RawPeer, data_frame, hello};
use prost::Message;
use prost_types::field_descriptor_proto::Label;
use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorSet};

const TOO_OLD: u32 = OLDEST - 1;
const OLDEST: u32 = Version::OLDEST.number();
/// Field 1000, a number, which a later program of this version may add to any message.
const LATER_FIELD: [u8; 3] = [0xc0, 0x3e, 7];

#[test]
fn a_client_of_a_too_old_version_gets_both_versions() {
    let mut cluster = Cluster::of(1);
    let mut client = RawClient::connect(&cluster.socket(0));
    client.send(&ClientHello { version: TOO_OLD, program: "old".to_owned(), ..Default::default() });
    let answer: ServerHello = client.receive().expect("the store says why");
    let error = answer.error.expect("it is refused");
    assert_eq!(error.code, ErrorCode::VersionMismatch as u32);
    assert_eq!((error.a, error.b), (OLDEST.into(), TOO_OLD.into()));
    client.await_close();
    cluster.assert_serves();
}

#[test]
fn a_store_of_a_too_old_version_gets_both_versions_from_the_directory() {
    let mut cluster = Cluster::open(1);
    let refused = open_session(&cluster.shard_addresses[0], TOO_OLD).expect_err("it is refused");
    assert_eq!(refused, Error::VersionMismatch { ours: TOO_OLD, theirs: OLDEST });
    cluster.shards[0]
        .as_ref()
        .expect("the shard runs")
        .await_log("refused a peer of the control plane");
    cluster.assert_serves();
}

fn open_session(address: &str, version: u32) -> Result<ShardMessages, Error> {
    let hello = Hello {
        version,
        cluster: "hoplite".to_owned(),
        node: "old".to_owned(),
        data_address: "127.0.0.1:9".to_owned(),
        shards: vec![address.to_owned()],
        ..Hello::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime starts");
    let first = runtime.block_on(async {
        let mut client =
            DirectoryClient::connect(format!("http://{address}")).await.expect("the shard listens");
        let said = StoreMessages { hello: Some(hello), messages: vec![] };
        let open =
            futures::StreamExt::chain(futures::stream::iter([said]), futures::stream::pending());
        client.session(open).await?.into_inner().message().await
    });
    first.map(|first| first.expect("the session is open")).map_err(|status| from_status(&status))
}

#[test]
fn programs_of_the_oldest_version_are_served_on_each_plane() {
    let mut cluster = Cluster::open(1);
    cluster.client(0).put("object", &[7; 100_000]).unwrap();
    let mut client = RawClient::connect(&cluster.socket(0));
    client.send(&ClientHello { version: OLDEST, program: "old".to_owned(), ..Default::default() });
    let answer: ServerHello = client.receive().expect("the store greets");
    assert_eq!((answer.error, answer.version), (None, OLDEST));

    let mut peer = RawPeer::connect(&cluster.data_address(0));
    peer.send(Kind::Hello, &hello("hoplite", OLDEST));
    let (kind, answer) = peer.receive().expect("the store greets");
    assert_eq!(kind, Kind::Hello as u8);
    assert_eq!(v1::DataHello::decode(&answer[..]).unwrap().version, OLDEST);

    let first = open_session(&cluster.shard_addresses[0], OLDEST).expect("it is accepted");
    assert_eq!(first.welcome.expect("the shard welcomes").version, OLDEST);
    cluster.assert_serves();
}

#[test]
fn a_store_of_a_too_old_version_is_not_served_by_others() {
    let mut cluster = Cluster::of(1);
    cluster.client(0).put("object", &[7; 100_000]).unwrap();
    let mut peer = RawPeer::connect(&cluster.data_address(0));
    peer.send_bytes(&data_frame(Kind::Hello, &hello("hoplite", TOO_OLD).encode_to_vec()));
    peer.await_close();
    cluster.assert_serves();
}

fn with_later_field(message: &impl Message) -> Vec<u8> {
    [message.encode_to_vec(), LATER_FIELD.to_vec()].concat()
}

#[test]
fn unknown_fields_of_a_later_program_are_ignored() {
    let mut cluster = Cluster::open(1);
    let mut client = RawClient::connect(&cluster.socket(0));
    let mut say = |message: &[u8]| {
        let length = u32::try_from(message.len()).unwrap();
        client.send_bytes(&[&length.to_le_bytes()[..], message].concat());
    };
    say(&with_later_field(&ClientHello { version: PROTOCOL_VERSION, ..Default::default() }));
    let body = v1::request::Body::Status(Default::default());
    say(&with_later_field(&v1::Request { call: 7, body: Some(body), ..Default::default() }));
    assert_eq!(client.receive::<ServerHello>().expect("the store greets").error, None);
    assert_eq!(client.receive::<v1::Response>().expect("the store answers").call, 7);

    let mut peer = RawPeer::connect(&cluster.data_address(0));
    let greeting = with_later_field(&hello("hoplite", PROTOCOL_VERSION));
    peer.send_bytes(&data_frame(Kind::Hello, &greeting));
    assert_eq!(peer.receive().map(|(kind, _)| kind), Some(Kind::Hello as u8));
    let pull =
        v1::Pull { id: b"none".as_slice().into(), put: 1, size_bytes: 1, ..Default::default() };
    peer.send_bytes(&data_frame(Kind::Pull, &with_later_field(&pull)));
    assert_eq!(
        peer.receive().map(|(kind, _)| kind),
        Some(Kind::End as u8),
        "there is no such object"
    );
    cluster.assert_serves();
}

fn protocol() -> BTreeSet<String> {
    let set =
        FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).expect("the protocol describes itself");
    let mut lines = BTreeSet::new();
    for file in set.file.iter().filter(|file| file.package() == "hoplite.v1") {
        file.message_type.iter().for_each(|message| add_message("", message, &mut lines));
        file.enum_type.iter().for_each(|values| add_enum("", values, &mut lines));
        for service in &file.service {
            for method in &service.method {
                let stream = |is: bool| if is { "stream " } else { "" };
                let (takes, gives) =
                    (stream(method.client_streaming()), stream(method.server_streaming()));
                let (input, output) = (method.input_type(), method.output_type());
                let name = format!("{}.{}", service.name(), method.name());
                lines.insert(format!("{name}: {takes}{input} -> {gives}{output}"));
            }
        }
    }
    lines
}

fn add_message(outer: &str, message: &DescriptorProto, lines: &mut BTreeSet<String>) {
    let name = format!("{outer}{}", message.name());
    for field in &message.field {
        let kind = match field.type_name() {
            "" => format!("{:?}", field.r#type()).to_lowercase(),
            named => named.to_owned(),
        };
        let label = match field.label() {
            Label::Repeated => "repeated ",
            _ if field.proto3_optional() => "optional ",
            _ => "",
        };
        lines.insert(format!("{name} {}: {label}{kind} {}", field.number(), field.name()));
    }
    let outer = format!("{name}.");
    message.nested_type.iter().for_each(|inner| add_message(&outer, inner, lines));
    message.enum_type.iter().for_each(|values| add_enum(&outer, values, lines));
}

fn add_enum(outer: &str, values: &EnumDescriptorProto, lines: &mut BTreeSet<String>) {
    for value in &values.value {
        lines.insert(format!("{outer}{} {}: {}", values.name(), value.number(), value.name()));
    }
}

fn record_of(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../proto/wire/{version}.txt"))
}

#[test]
fn a_version_only_gains_messages_and_fields() {
    let protocol = protocol();
    let mut recorded = BTreeSet::new();
    for version in OLDEST..=PROTOCOL_VERSION {
        let record = std::fs::read_to_string(record_of(version)).unwrap_or_default();
        recorded = record.lines().map(str::to_owned).collect();
        let changed: Vec<_> = recorded.difference(&protocol).collect();
        assert!(changed.is_empty(), "programs of version {version} rely on this: {changed:#?}");
    }
    if std::env::var_os("HOPLITE_WRITE_DOCS").is_some() {
        let text: String = protocol.iter().map(|line| format!("{line}\n")).collect();
        return std::fs::write(record_of(PROTOCOL_VERSION), text).unwrap();
    }
    let added: Vec<_> = protocol.difference(&recorded).collect();
    assert!(added.is_empty(), "HOPLITE_WRITE_DOCS=1 records it, so that it stays: {added:#?}");
}
