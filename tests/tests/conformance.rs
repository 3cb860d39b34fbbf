//! Cases for the asynchronous client, the blocking client and the command line.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use hoplite_client::{
    Client, Confirmation, Dtype, Error, ErrorCode, Metadata, ObjectId, PutOptions, ReduceOp,
    ReduceOptions, ReduceOrder, blocking,
};
use hoplite_core::ErrorCode as ObjectErrorCode;
use hoplite_tests::TIME_LIMIT;
use hoplite_tests::cluster::{Cluster, Plan, await_that, program};
use hoplite_tests::contents::bytes;

const SHORT: Duration = Duration::from_millis(200);

#[derive(Debug, Clone)]
enum Call {
    Put {
        id: &'static str,
        contents: Vec<u8>,
        dtype: Dtype,
        shape: Option<Vec<u64>>,
    },
    Stream {
        id: &'static str,
        contents: Vec<u8>,
        piece: usize,
    },
    Abort {
        id: &'static str,
        contents: Vec<u8>,
    },
    Get {
        id: &'static str,
        timeout: Duration,
    },
    GetInto {
        id: &'static str,
        timeout: Duration,
    },
    Read {
        id: &'static str,
        timeout: Duration,
    },
    Metadata {
        id: &'static str,
    },
    Delete {
        ids: Vec<&'static str>,
    },
    Wait {
        ids: Vec<&'static str>,
        count: usize,
        timeout: Duration,
    },
    Contains {
        id: &'static str,
    },
    Locate {
        id: &'static str,
    },
    Reduce {
        target: &'static str,
        sources: Vec<&'static str>,
        op: ReduceOp,
        count: Option<usize>,
        order: ReduceOrder,
        timeout: Duration,
    },
}

#[derive(Debug, Clone, PartialEq)]
enum Answer {
    Done,
    Contents(Vec<u8>),
    Described(Dtype, Option<Vec<u64>>),
    Count(usize),
    Ready(Vec<usize>),
    Is(bool),
    Nodes(Vec<String>),
    Reduced(Vec<String>),
    Failed(ObjectErrorCode, &'static str),
    NotOffered,
}

struct Case(usize, Call, Answer);

fn put(id: &'static str, contents: &[u8]) -> Call {
    Call::Put { id, contents: contents.to_vec(), dtype: Dtype::Opaque, shape: None }
}

fn get(id: &'static str) -> Call {
    Call::Get { id, timeout: TIME_LIMIT }
}

fn sum(target: &'static str, sources: &[&'static str]) -> Call {
    let (op, order) = (ReduceOp::Sum, ReduceOrder::Any);
    Call::Reduce { target, sources: sources.to_vec(), op, count: None, order, timeout: TIME_LIMIT }
}

fn cases() -> Vec<Case> {
    use Answer::{Contents, Count, Done, Failed, Is, Nodes, Ready};
    let timed_out = || Failed(ObjectErrorCode::Timeout, "timed out");
    let (small, large) = (bytes(1, 1000), bytes(2, 300_001));
    let mut cases = Vec::new();
    for (id, contents) in [("empty", &vec![]), ("small", &small), ("large", &large)] {
        cases.extend([
            Case(0, put(id, contents), Done),
            Case(0, put(id, contents), Done),
            Case(1, put(id, contents), Done),
            Case(0, put(id, b"other"), Failed(ObjectErrorCode::AlreadyExists, "already exists")),
            Case(1, put(id, b"other"), Failed(ObjectErrorCode::AlreadyExists, "already exists")),
            Case(2, get(id), Contents(contents.clone())),
            Case(1, Call::GetInto { id, timeout: TIME_LIMIT }, Contents(contents.clone())),
            Case(0, Call::Read { id, timeout: TIME_LIMIT }, Contents(contents.clone())),
            Case(0, Call::Contains { id }, Is(true)),
            Case(2, Call::Wait { ids: vec![id], count: 1, timeout: TIME_LIMIT }, Ready(vec![0])),
            Case(2, Call::Delete { ids: vec![id] }, Count(1)),
            Case(0, Call::Delete { ids: vec![id] }, Count(0)),
            Case(1, Call::Contains { id }, Is(false)),
            Case(0, put(id, b"other"), Done),
            Case(1, get(id), Contents(b"other".to_vec())),
            Case(1, Call::Delete { ids: vec![id, "unknown"] }, Count(1)),
        ]);
    }
    let timeout = SHORT;
    cases.extend([
        Case(0, Call::Get { id: "unknown", timeout }, timed_out()),
        Case(0, Call::GetInto { id: "unknown", timeout }, timed_out()),
        Case(1, Call::Read { id: "unknown", timeout }, timed_out()),
        Case(
            0,
            put("huge", &vec![0; 9 << 20]),
            Failed(ObjectErrorCode::ObjectTooLarge, "larger than the limit"),
        ),
        Case(1, Call::Stream { id: "stream", contents: large.clone(), piece: 7001 }, Done),
        Case(0, Call::Stream { id: "stream", contents: large.clone(), piece: 300_000 }, Done),
        Case(2, Call::Read { id: "stream", timeout: TIME_LIMIT }, Contents(large.clone())),
        Case(1, Call::Delete { ids: vec!["stream"] }, Count(1)),
        Case(0, Call::Abort { id: "given up", contents: large.clone() }, Done),
        Case(1, Call::Get { id: "given up", timeout }, timed_out()),
        Case(1, put("given up", &small), Done),
        Case(0, Call::Locate { id: "given up" }, Nodes(vec!["node-1".to_owned()])),
        Case(0, get("given up"), Contents(small.clone())),
        Case(
            2,
            Call::Locate { id: "given up" },
            Nodes(vec!["node-0".to_owned(), "node-1".to_owned()]),
        ),
        Case(
            2,
            Call::Wait {
                ids: vec!["unknown", "given up", "neither"],
                count: 1,
                timeout: TIME_LIMIT,
            },
            Ready(vec![1]),
        ),
        // At the node of the put, because the directory may answer too late.
        Case(1, Call::Wait { ids: vec!["unknown", "given up"], count: 2, timeout }, Ready(vec![1])),
        Case(1, Call::Delete { ids: vec!["given up"] }, Count(1)),
    ]);
    cases.extend(typed());
    for length in [0, 1, 1000, 100_000] {
        cases.extend(reduces(length));
    }
    cases
}

fn typed() -> Vec<Case> {
    use Answer::{Contents, Count, Described, Done, Failed};
    let mut cases = Vec::new();
    for (dtype, shape, size) in [
        (Dtype::F32, Some(vec![2, 3]), 24),
        (Dtype::Bf16, Some(vec![5]), 10),
        (Dtype::U8, None, 7),
        (Dtype::F64, Some(vec![4, 0]), 0),
    ] {
        let typed =
            Call::Put { id: "typed", contents: bytes(3, size), dtype, shape: shape.clone() };
        cases.extend([
            Case(0, typed.clone(), Done),
            Case(1, Call::Metadata { id: "typed" }, Described(dtype, shape)),
            Case(1, Call::Get { id: "typed", timeout: TIME_LIMIT }, Contents(bytes(3, size))),
            Case(0, Call::Delete { ids: vec!["typed"] }, Count(1)),
        ]);
    }
    let misshapen = Call::Put {
        id: "typed",
        contents: bytes(3, 23),
        dtype: Dtype::F32,
        shape: Some(vec![2, 3]),
    };
    cases.push(Case(
        0,
        misshapen,
        Failed(ObjectErrorCode::InvalidMetadata, "do not make 23 bytes"),
    ));
    cases
}

fn reduces(length: i32) -> Vec<Case> {
    use Answer::{Contents, Count, Described, Done, Failed, Reduced};
    let shape = Some(vec![u64::try_from(length).expect("it is positive")]);
    let array = |factor: i32| -> Vec<u8> {
        (0..length).flat_map(|index| (index - 7).wrapping_mul(factor).to_le_bytes()).collect()
    };
    let put = |id, factor, shape: &Option<Vec<u64>>| Call::Put {
        id,
        contents: array(factor),
        dtype: Dtype::I32,
        shape: shape.clone(),
    };
    let largest = |order, count, timeout| Call::Reduce {
        target: "largest",
        sources: vec!["c", "never", "a", "b"],
        op: ReduceOp::Max,
        count,
        order,
        timeout,
    };
    let maximum: Vec<u8> = (0..length)
        .flat_map(|index| {
            [1, 2, -4]
                .map(|factor| (index - 7) * factor)
                .into_iter()
                .max()
                .unwrap_or(0)
                .to_le_bytes()
        })
        .collect();
    let all = |ids: &[&str]| Reduced(ids.iter().map(|id| (*id).to_owned()).collect());
    let exists = || Failed(ObjectErrorCode::AlreadyExists, "already exists");
    let mismatch = || Failed(ObjectErrorCode::TypeMismatch, "cannot be reduced");
    let twice = || Failed(ObjectErrorCode::DuplicateId, "more than once");
    let (any, fixed) = (ReduceOrder::Any, ReduceOrder::Fixed);
    let mut cases = vec![
        Case(0, put("a", 1, &shape), Done),
        Case(1, put("b", 2, &shape), Done),
        Case(2, put("c", -4, &shape), Done),
        Case(0, sum("sum", &["a", "b", "c"]), all(&["a", "b", "c"])),
        Case(1, get("sum"), Contents(array(-1))),
        Case(2, Call::Metadata { id: "sum" }, Described(Dtype::I32, shape.clone())),
        Case(0, sum("sum", &["a", "b"]), exists()),
        Case(2, sum("sum", &["a", "b"]), exists()),
        Case(0, sum("of sums", &["sum", "a"]), all(&["a", "sum"])),
        Case(0, get("of sums"), Contents(array(0))),
        Case(1, largest(fixed, Some(3), TIME_LIMIT), all(&["c", "a", "b"])),
        Case(0, get("largest"), Contents(maximum.clone())),
        Case(0, Call::Delete { ids: vec!["largest"] }, Count(1)),
        Case(2, largest(any, Some(3), TIME_LIMIT), all(&["a", "b", "c"])),
        Case(2, get("largest"), Contents(maximum)),
        Case(0, Call::Delete { ids: vec!["largest"] }, Count(1)),
        Case(0, largest(any, None, SHORT), Failed(ObjectErrorCode::Timeout, "timed out")),
        Case(0, sum("twice", &["a", "b", "a"]), twice()),
        Case(0, sum("a", &["b", "a"]), twice()),
        Case(0, put("flat", 1, &None), Done),
        Case(1, sum("mixed", &["a", "flat"]), mismatch()),
        Case(1, self::put("bytes", b"1234"), Done),
        Case(0, sum("opaque", &["bytes"]), mismatch()),
    ];
    let left = vec![
        "a", "b", "c", "sum", "of sums", "flat", "bytes", "largest", "twice", "mixed", "opaque",
    ];
    cases.push(Case(2, Call::Delete { ids: left }, Count(7)));
    cases
}

fn check(interface: &str, mut perform: impl FnMut(&Cluster, usize, Call) -> Answer) {
    let mut cluster =
        Cluster::start(Plan { nodes: 3, memory: "8MiB".to_owned(), ..Plan::default() });
    for (number, Case(node, call, expected)) in cases().into_iter().enumerate() {
        let mut what = format!("{interface}, case {number}, node {node}: {call:?}");
        what.truncate(200);
        let given_up = if let Call::Abort { id, .. } = call { Some(id) } else { None };
        let answer = perform(&cluster, node, call);
        if let Some(id) = given_up {
            let client = cluster.client(node);
            await_that("the end of it", || {
                client.locate(id, Duration::ZERO).is_ok_and(|known| known.locations.is_empty())
            });
        }
        if answer != Answer::NotOffered {
            let is_right = answer == expected;
            let mut shown = format!("{answer:?}, expected {expected:?}");
            shown.truncate(400);
            assert!(is_right, "{what}: {shown}");
        }
    }
    for node in 0..3 {
        cluster.await_empty(node);
    }
    cluster.assert_serves();
}

fn failed(error: &Error) -> Answer {
    let ErrorCode::Object(code) = error.code() else {
        panic!("an unexpected kind of error: {error}")
    };
    recognised(code, &error.to_string())
}

fn recognised(code: ObjectErrorCode, message: &str) -> Answer {
    let known = [
        "already exists",
        "timed out",
        "larger than the limit",
        "do not make 23 bytes",
        "more than once",
        "cannot be reduced",
    ];
    let part = known.into_iter().find(|part| message.contains(part));
    Answer::Failed(code, part.unwrap_or_else(|| panic!("an unexpected message: {message}")))
}

fn options(dtype: Dtype, shape: Option<Vec<u64>>) -> PutOptions {
    let metadata = Metadata { dtype, shape, ..Metadata::default() };
    PutOptions { metadata, confirm: Confirmation::Confirmed, ..PutOptions::default() }
}

fn nodes(locations: hoplite_client::Locations) -> Answer {
    let mut nodes: Vec<String> =
        locations.locations.iter().map(|location| location.node.as_str().to_owned()).collect();
    nodes.sort();
    Answer::Nodes(nodes)
}

fn reduced(order: ReduceOrder, ids: impl Iterator<Item = String>) -> Answer {
    let mut ids: Vec<String> = ids.collect();
    if order == ReduceOrder::Any {
        ids.sort();
    }
    Answer::Reduced(ids)
}

async fn perform_async(client: &Client, call: Call) -> hoplite_client::Result<Answer> {
    Ok(match call {
        Call::Put { id, contents, dtype, shape } => {
            client.put_with(id, &contents, options(dtype, shape)).await?;
            Answer::Done
        }
        Call::Stream { id, contents, piece } => {
            let size_bytes = contents.len() as u64;
            let mut writer = client.create(id, size_bytes, options(Dtype::Opaque, None)).await?;
            for piece in contents.chunks(piece) {
                writer.write(piece)?;
            }
            writer.seal().await?;
            Answer::Done
        }
        Call::Abort { id, contents } => {
            let size_bytes = contents.len() as u64;
            let mut writer = client.create(id, size_bytes, options(Dtype::Opaque, None)).await?;
            writer.write(&contents[..contents.len() / 2])?;
            Answer::Done
        }
        Call::Get { id, timeout } => Answer::Contents(client.get(id, timeout).await?.to_vec()),
        Call::GetInto { id, timeout } => {
            let mut out = vec![0; 1 << 20];
            let length = client.get_into(id, &mut out, timeout).await?;
            out.truncate(length);
            Answer::Contents(out)
        }
        Call::Read { id, timeout } => {
            let mut reader = client.get_reader(id, timeout).await?;
            let (mut contents, mut piece) = (Vec::new(), [0; 5000]);
            loop {
                match reader.read(&mut piece, timeout).await? {
                    0 => break Answer::Contents(contents),
                    length => contents.extend_from_slice(&piece[..length]),
                }
            }
        }
        Call::Metadata { id } => {
            let view = client.get(id, TIME_LIMIT).await?;
            Answer::Described(view.metadata().dtype, view.metadata().shape.clone())
        }
        Call::Delete { ids } => Answer::Count(client.delete(ids, TIME_LIMIT).await?),
        Call::Wait { ids, count, timeout } => {
            Answer::Ready(client.wait(ids, count, timeout).await?)
        }
        Call::Contains { id } => Answer::Is(client.contains(id).await?),
        Call::Locate { id } => nodes(client.locate(id, TIME_LIMIT).await?),
        Call::Reduce { target, sources, op, count, order, timeout } => {
            let options = ReduceOptions {
                op,
                num_objects: count,
                order,
                timeout,
                ..ReduceOptions::default()
            };
            reduced(
                order,
                client.reduce_with(target, sources, options).await?.iter().map(ObjectId::to_string),
            )
        }
    })
}

fn perform_blocking(client: &blocking::Client, call: Call) -> hoplite_client::Result<Answer> {
    Ok(match call {
        Call::Put { id, contents, dtype, shape } => {
            client.put_with(id, &contents, options(dtype, shape))?;
            Answer::Done
        }
        Call::Stream { id, contents, piece } => {
            let mut writer =
                client.create(id, contents.len() as u64, options(Dtype::Opaque, None))?;
            for piece in contents.chunks(piece) {
                writer.write(piece)?;
            }
            writer.seal()?;
            Answer::Done
        }
        Call::Abort { id, contents } => {
            let mut writer =
                client.create(id, contents.len() as u64, options(Dtype::Opaque, None))?;
            writer.write(&contents[..contents.len() / 2])?;
            Answer::Done
        }
        Call::Get { id, timeout } => Answer::Contents(client.get(id, timeout)?.to_vec()),
        Call::GetInto { id, timeout } => {
            let mut out = vec![0; 1 << 20];
            let length = client.get_into(id, &mut out, timeout)?;
            out.truncate(length);
            Answer::Contents(out)
        }
        Call::Read { id, timeout } => {
            let mut reader = client.get_reader(id, timeout)?;
            let (mut contents, mut piece) = (Vec::new(), [0; 5000]);
            loop {
                match reader.read(&mut piece, timeout)? {
                    0 => break Answer::Contents(contents),
                    length => contents.extend_from_slice(&piece[..length]),
                }
            }
        }
        Call::Metadata { id } => {
            let view = client.get(id, TIME_LIMIT)?;
            Answer::Described(view.metadata().dtype, view.metadata().shape.clone())
        }
        Call::Delete { ids } => Answer::Count(client.delete(ids, TIME_LIMIT)?),
        Call::Wait { ids, count, timeout } => Answer::Ready(client.wait(ids, count, timeout)?),
        Call::Contains { id } => Answer::Is(client.contains(id)?),
        Call::Locate { id } => nodes(client.locate(id, TIME_LIMIT)?),
        Call::Reduce { target, sources, op, count, order, timeout } => {
            let options = ReduceOptions {
                op,
                num_objects: count,
                order,
                timeout,
                ..ReduceOptions::default()
            };
            reduced(
                order,
                client.reduce_with(target, sources, options)?.iter().map(ObjectId::to_string),
            )
        }
    })
}

struct CommandLine {
    place: tempfile::TempDir,
}

impl CommandLine {
    fn run(
        &self,
        cluster: &Cluster,
        node: usize,
        timeout: Duration,
        arguments: &[&str],
        input: &[u8],
    ) -> Output {
        let mut command = Command::new(program("hoplite"));
        command
            .arg("--socket")
            .arg(cluster.socket(node))
            .args(["--timeout", &format!("{}ms", timeout.as_millis())]);
        let file = self.place.path().join("input");
        std::fs::write(&file, input).expect("the file can be written");
        let stdin = std::fs::File::open(&file).expect("the file can be read");
        let output = command
            .args(arguments)
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .output();
        output.expect("the command line starts")
    }

    fn judge(output: Output, done: impl FnOnce(Output) -> Answer) -> Answer {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        match output.status.code() {
            Some(0) => done(output),
            Some(1) => {
                assert_eq!(text.lines().count(), 1, "one line says why: {text}");
                let code = match &text {
                    text if text.contains("already exists") => ObjectErrorCode::AlreadyExists,
                    text if text.contains("timed out") => ObjectErrorCode::Timeout,
                    text if text.contains("larger than") => ObjectErrorCode::ObjectTooLarge,
                    text if text.contains("more than once") => ObjectErrorCode::DuplicateId,
                    text if text.contains("cannot be reduced") => ObjectErrorCode::TypeMismatch,
                    _ => ObjectErrorCode::InvalidMetadata,
                };
                recognised(code, &text)
            }
            code => panic!("exit code {code:?}: {text}"),
        }
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each call")]
    fn perform(&self, cluster: &Cluster, node: usize, call: Call) -> Answer {
        let run = |timeout, arguments: &[&str], input: &[u8]| {
            self.run(cluster, node, timeout, arguments, input)
        };
        match call {
            Call::Put { id, contents, dtype, shape } => {
                let shape = shape
                    .map(|shape| shape.iter().map(u64::to_string).collect::<Vec<_>>().join(","));
                let mut arguments = vec!["put", id, "-", "--dtype", dtype.name()];
                arguments.extend(shape.iter().flat_map(|shape| ["--shape", shape]));
                Self::judge(run(TIME_LIMIT, &arguments, &contents), |_| Answer::Done)
            }
            Call::Stream { id, contents, .. } => {
                let file = self.place.path().join("stream");
                std::fs::write(&file, contents).expect("the file can be written");
                let output = run(TIME_LIMIT, &["put", id, file.to_str().expect("UTF-8")], b"");
                Self::judge(output, |_| Answer::Done)
            }
            Call::Abort { .. } => Answer::NotOffered,
            Call::Get { id, timeout } | Call::Read { id, timeout } => {
                Self::judge(run(timeout, &["get", id], b""), |output| {
                    Answer::Contents(output.stdout)
                })
            }
            Call::GetInto { id, timeout } => {
                let file = self.place.path().join("output");
                let output = run(timeout, &["get", id, "-o", file.to_str().expect("UTF-8")], b"");
                Self::judge(output, |_| {
                    Answer::Contents(std::fs::read(&file).expect("the file is there"))
                })
            }
            Call::Metadata { id } => {
                let object = &self.stat(cluster, node, id).expect("the object is known")["object"];
                let dtype =
                    object["dtype"].as_str().expect("a dtype").parse().expect("a known one");
                let extents = object["shape"].as_array();
                let shape = extents
                    .map(|extents| extents.iter().filter_map(serde_json::Value::as_u64).collect());
                Answer::Described(dtype, shape)
            }
            Call::Delete { ids } => {
                let arguments: Vec<&str> =
                    ["delete"].into_iter().chain(ids.iter().copied()).collect();
                Self::judge(run(TIME_LIMIT, &arguments, b""), |output| {
                    let text = String::from_utf8_lossy(&output.stderr).into_owned();
                    let absent =
                        text.split(' ').nth(1).map_or(0, |word| word.parse().expect("a number"));
                    Answer::Count(ids.len() - absent)
                })
            }
            Call::Wait { ids, count, timeout } => {
                let count_text = count.to_string();
                let options = ["--num", count_text.as_str()];
                let arguments: Vec<&str> =
                    ["wait"].into_iter().chain(ids.iter().copied()).chain(options).collect();
                let output = run(timeout, &arguments, b"");
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                let place =
                    |line: &str| ids.iter().position(|id| *id == line).expect("one of the ids");
                let ready: Vec<usize> = text.lines().map(place).collect();
                assert_eq!(output.status.code(), Some(i32::from(ready.len() < count)));
                Answer::Ready(ready)
            }
            Call::Contains { id } => Answer::Is(self.stat(cluster, node, id).is_some_and(|stat| {
                let locations = stat["locations"].as_array();
                locations
                    .is_some_and(|all| all.iter().any(|location| location["state"] == "complete"))
            })),
            Call::Locate { id } => {
                let stat = self.stat(cluster, node, id).expect("the object is known");
                let locations = stat["locations"].as_array().expect("a list");
                let mut nodes: Vec<String> = locations
                    .iter()
                    .map(|location| location["node"].as_str().expect("a name").to_owned())
                    .collect();
                nodes.sort();
                Answer::Nodes(nodes)
            }
            Call::Reduce { target, sources, op, count, order, timeout } => {
                let count = count.map(|count| count.to_string());
                let mut arguments = vec!["reduce", target, "--op", op.name()];
                arguments.extend(&sources);
                arguments.extend(count.iter().flat_map(|count| ["--num", count]));
                if order == ReduceOrder::Fixed {
                    arguments.push("--deterministic");
                }
                Self::judge(run(timeout, &arguments, b""), |output| {
                    let text = String::from_utf8_lossy(&output.stdout).into_owned();
                    reduced(order, text.lines().map(str::to_owned))
                })
            }
        }
    }

    fn stat(&self, cluster: &Cluster, node: usize, id: &str) -> Option<serde_json::Value> {
        let output = self.run(cluster, node, TIME_LIMIT, &["stat", id, "--json"], b"");
        let is_known = output.status.code() == Some(0);
        is_known.then(|| serde_json::from_slice(&output.stdout).expect("JSON"))
    }
}

#[test]
fn the_asynchronous_client_conforms() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    check("async", |cluster, node, call| {
        runtime.block_on(async {
            let client =
                Client::connect(cluster.socket(node)).await.expect("the store accepts clients");
            perform_async(&client, call).await.unwrap_or_else(|error| failed(&error))
        })
    });
}

#[test]
fn the_blocking_client_conforms() {
    check("blocking", |cluster, node, call| {
        perform_blocking(&cluster.client(node), call).unwrap_or_else(|error| failed(&error))
    });
}

#[test]
fn the_command_line_conforms() {
    let command_line = CommandLine { place: tempfile::tempdir().unwrap() };
    check("command line", |cluster, node, call| command_line.perform(cluster, node, call));
}
