//! The promises of docs/reference/versions.md.

use std::collections::BTreeSet;
use std::path::Path;

use hoplite_core::{Error, ErrorCode};
use hoplite_proto::status::from_status;
use hoplite_proto::v1::directory_client::DirectoryClient;
use hoplite_proto::v1::{ClientHello, Hello, ServerHello, StoreMessages};
use hoplite_proto::{FILE_DESCRIPTOR_SET, PROTOCOL_VERSION, v1};
use hoplite_tests::cluster::Cluster;
use hoplite_tests::raw::{Kind, RawClient, RawPeer, data_frame, hello};
use prost::Message;
use prost_types::field_descriptor_proto::Label;
use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorSet};

const PREVIOUS: u32 = PROTOCOL_VERSION - 1;
/// Field 1000, a number of a later program.
const LATER_FIELD: [u8; 3] = [0xc0, 0x3e, 7];

#[test]
fn a_client_of_the_previous_version_is_told_both_versions() {
    let mut cluster = Cluster::of(1);
    let mut client = RawClient::connect(&cluster.socket(0));
    client.say(&ClientHello { version: PREVIOUS, program: "old".to_owned(), owners: vec![] });
    let answer: ServerHello = client.hear().expect("the store says why");
    let error = answer.error.expect("it is refused");
    assert_eq!(error.code, ErrorCode::VersionMismatch as u32);
    assert_eq!((error.a, error.b), (PROTOCOL_VERSION.into(), PREVIOUS.into()));
    client.await_close();
    cluster.assert_serves();
}

#[test]
fn a_store_of_the_previous_version_is_told_both_versions_by_the_directory() {
    let mut cluster = Cluster::open(1);
    let address = cluster.shard_addresses[0].clone();
    let hello = Hello {
        version: PREVIOUS,
        cluster: "hoplite".to_owned(),
        node: "old".to_owned(),
        data_address: "127.0.0.1:9".to_owned(),
        shards: vec![address.clone()],
        ..Hello::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ended = runtime.block_on(async {
        let mut client = DirectoryClient::connect(format!("http://{address}")).await.unwrap();
        let said = StoreMessages { hello: Some(hello), messages: vec![] };
        let open = futures::StreamExt::chain(futures::stream::iter([said]), futures::stream::pending());
        client.session(open).await?.into_inner().message().await
    });
    let error = from_status(&ended.expect_err("it is refused"));
    // From the store's point of view.
    assert_eq!(error, Error::VersionMismatch { ours: PREVIOUS, theirs: PROTOCOL_VERSION });
    cluster.assert_serves();
}

#[test]
fn a_store_of_the_previous_version_is_not_served_by_others() {
    let mut cluster = Cluster::of(1);
    cluster.client(0).put("object", &[7; 100_000]).unwrap();
    let mut peer = RawPeer::connect(&cluster.data_address(0));
    peer.send_bytes(&data_frame(Kind::Hello, &hello("hoplite", PREVIOUS).encode_to_vec()));
    peer.await_close();
    cluster.assert_serves();
}

fn with_later_field(message: &impl Message) -> Vec<u8> {
    [message.encode_to_vec(), LATER_FIELD.to_vec()].concat()
}

#[test]
fn what_a_later_program_of_this_version_says_beside_is_ignored() {
    let mut cluster = Cluster::open(1);
    let mut client = RawClient::connect(&cluster.socket(0));
    let mut say = |message: &[u8]| {
        let length = u32::try_from(message.len()).unwrap();
        client.send_bytes(&[&length.to_le_bytes()[..], message].concat());
    };
    say(&with_later_field(&ClientHello { version: PROTOCOL_VERSION, ..Default::default() }));
    let body = v1::request::Body::Status(Default::default());
    say(&with_later_field(&v1::Request { call: 7, body: Some(body), ..Default::default() }));
    assert_eq!(client.hear::<ServerHello>().expect("the store greets").error, None);
    assert_eq!(client.hear::<v1::Response>().expect("the store answers").call, 7);

    let mut peer = RawPeer::connect(&cluster.data_address(0));
    let greeting = with_later_field(&hello("hoplite", PROTOCOL_VERSION));
    peer.send_bytes(&data_frame(Kind::Hello, &greeting));
    assert_eq!(peer.hear().map(|(kind, _)| kind), Some(Kind::Hello as u8));
    let pull = v1::Pull { id: b"none".as_slice().into(), put: 1, size_bytes: 1, ..Default::default() };
    peer.send_bytes(&data_frame(Kind::Pull, &with_later_field(&pull)));
    assert_eq!(peer.hear().map(|(kind, _)| kind), Some(Kind::End as u8), "there is no such object");
    cluster.assert_serves();
}

fn protocol() -> BTreeSet<String> {
    let set = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).expect("the protocol describes itself");
    let mut lines = BTreeSet::new();
    for file in set.file.iter().filter(|file| file.package() == "hoplite.v1") {
        file.message_type.iter().for_each(|message| add_message("", message, &mut lines));
        file.enum_type.iter().for_each(|values| add_enum("", values, &mut lines));
        for service in &file.service {
            for method in &service.method {
                let stream = |is: bool| if is { "stream " } else { "" };
                let (takes, gives) = (stream(method.client_streaming()), stream(method.server_streaming()));
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

#[test]
fn what_a_version_consists_of_is_only_added_to() {
    let name = format!("../proto/wire/{PROTOCOL_VERSION}.txt");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    let recorded = std::fs::read_to_string(&path).unwrap_or_default();
    let recorded: BTreeSet<String> = recorded.lines().map(str::to_owned).collect();
    let protocol = protocol();
    let changed: Vec<_> = recorded.difference(&protocol).collect();
    assert!(
        changed.is_empty(),
        "programs of version {PROTOCOL_VERSION} rely on this; without it, the protocol needs the next number: {changed:#?}"
    );
    if std::env::var_os("HOPLITE_WRITE_DOCS").is_some() {
        let text: String = protocol.iter().map(|line| format!("{line}\n")).collect();
        return std::fs::write(path, text).unwrap();
    }
    let added: Vec<_> = protocol.difference(&recorded).collect();
    assert!(added.is_empty(), "HOPLITE_WRITE_DOCS=1 records it, so that it stays: {added:#?}");
}
