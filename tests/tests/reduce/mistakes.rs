use std::thread::scope;

use hoplite_client::{AllreduceOptions, Dtype, Error, PutOptions, ReduceOrder, Result};
use hoplite_tests::cluster::Cluster;

use super::links::{FIRST_HALF, RECEIVER, SENDER, linked};
use super::*;

const ALL: [u64; 3] = [0, 1, 2];

fn options() -> AllreduceOptions {
    AllreduceOptions { timeout: TIME_LIMIT, ..AllreduceOptions::default() }
}

fn with_sources() -> Cluster {
    let cluster = Cluster::start(chained(3));
    for rank in 0..3 {
        put(&cluster, rank, LARGE, rank as u64);
    }
    cluster
}

/// Runs an allreduce in which rank 1 has other arguments. Links hold bytes until all have called.
fn disagreeing(
    cluster: &Cluster,
    target: &str,
    numbers: &[u64],
    wanted: &AllreduceOptions,
) -> Vec<Result<Vec<u8>>> {
    scope(|scope| {
        let (client, sources, wanted) = (cluster.client(1), ids(numbers), wanted.clone());
        let mistaken = scope.spawn(move || client.allreduce(target, sources, 1, wanted));
        let call = |rank: usize| {
            let client = cluster.client(rank);
            scope.spawn(move || client.allreduce(target, ids(&ALL), rank, options()))
        };
        [call(0), mistaken, call(2)].map(|call| call.join().unwrap()).into()
    })
}

#[test]
fn different_requests_are_refused_with_both_descriptions() {
    let (mut cluster, links) = linked(3);
    let wanted = "sum of 3 sources in any order";
    let [max, fixed] = [
        AllreduceOptions { op: ReduceOp::Max, ..options() },
        AllreduceOptions { order: ReduceOrder::Fixed, ..options() },
    ];
    let mistakes: [(&str, &[u64], AllreduceOptions, &str); 4] = [
        ("operation", &ALL, max, "max of 3 sources in any order"),
        ("order", &ALL, fixed, "sum of 3 sources in fixed order"),
        ("count", &[0, 1], options(), "sum of 2 sources in any order"),
        ("sources", &[2, 1, 0], options(), "of other sources"),
    ];
    for (what, numbers, asked, named) in mistakes {
        links.mark();
        links.hold(SENDER, RECEIVER, FIRST_HALF);
        for result in disagreeing(&cluster, what, numbers, &asked) {
            let error = refusal(result);
            assert!(matches!(error, ObjectError::TypeMismatch { .. }), "{what}: {error}");
            let error = error.to_string();
            let names_both =
                error.contains(named) && error.contains(&format!("rank 0 for {wanted}"));
            assert!(names_both, "{what}: {error}");
        }
        links.open();
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_participant_after_a_disagreement_gets_its_error() {
    let (mut cluster, links) = linked(3);
    let max = AllreduceOptions { op: ReduceOp::Max, ..options() };
    let call = |rank: usize, options: AllreduceOptions| {
        let client = cluster.client(rank);
        client.allreduce("target", ids(&ALL), rank, options)
    };
    links.hold(SENDER, RECEIVER, FIRST_HALF);
    scope(|scope| {
        let early = scope.spawn(|| call(1, max));
        for error in [refusal(call(0, options())), refusal(early.join().unwrap())] {
            assert!(matches!(error, ObjectError::TypeMismatch { .. }), "{error}");
        }
    });
    links.open();
    let error = refusal(call(2, options()));
    assert!(error.to_string().contains("a participant asks for max"), "{error}");
    let again = |rank: usize| {
        let is_of_first = |result: &Result<_>| match result {
            Err(Error::Object(error @ ObjectError::TypeMismatch { .. })) => {
                error.to_string().contains("a participant asks for max")
            }
            _ => false,
        };
        let mut calls = (0..3).map(|_| call(rank, options()));
        calls.find(|result| !is_of_first(result)).expect("one that is of the second attempt")
    };
    let results: Vec<_> = scope(|scope| {
        let again = &again;
        let calls = [0, 1, 2].map(|rank| scope.spawn(move || again(rank)));
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    for result in results {
        assert!(result.unwrap() == LARGE.reduced(ReduceOp::Sum, &ALL));
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn sources_that_do_not_go_together_are_named_at_all_ranks() {
    let mut cluster = Cluster::start(chained(2));
    let longer = Arrays { length: LARGE.length + 1, ..LARGE };
    let wider = Arrays { dtype: Dtype::F64, length: LARGE.length / 2 };
    let short = Arrays::of_bytes(1000);
    for (usual, other) in [(LARGE, longer), (LARGE, wider), (short, Arrays::of_bytes(1004))] {
        for rank in 0..2 {
            put(&cluster, rank, if rank == 1 { other } else { usual }, rank as u64);
        }
        let results: Vec<_> = scope(|scope| {
            let call = |rank: usize| {
                let client = cluster.client(rank);
                scope.spawn(move || client.allreduce("target", ids(&[0, 1]), rank, options()))
            };
            let calls = [0, 1].map(call);
            calls.into_iter().map(|call| call.join().unwrap()).collect()
        });
        for result in results {
            let error = refusal(result);
            assert!(matches!(error, ObjectError::TypeMismatch { .. }), "{other:?}: {error}");
            let error = error.to_string();
            assert!(error.contains("array-0") && error.contains("array-1"), "{other:?}: {error}");
        }
        cluster.client(0).delete(ids(&[0, 1]), TIME_LIMIT).unwrap();
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_request_that_differs_from_rank_0_is_refused_with_both_descriptions() {
    let mut cluster = Cluster::start(chained(3));
    let arrays = Arrays::of_bytes(1024);
    for rank in 0..3 {
        put(&cluster, rank, arrays, rank as u64);
    }
    let call = |rank: usize, numbers: &[u64], options: AllreduceOptions| {
        cluster.client(rank).allreduce("target", ids(numbers), rank.min(numbers.len() - 1), options)
    };
    let max = || AllreduceOptions { op: ReduceOp::Max, ..options() };
    let sum = arrays.reduced(ReduceOp::Sum, &ALL);
    scope(|scope| {
        let early = scope.spawn(|| call(1, &ALL, max()));
        assert!(call(0, &ALL, options()).unwrap() == sum);
        for error in [refusal(early.join().unwrap()), refusal(call(2, &ALL, max()))] {
            assert!(matches!(error, ObjectError::TypeMismatch { .. }), "{error}");
            let error = error.to_string();
            assert!(
                error.contains("a participant asks for max of 3 sources in any order"),
                "{error}"
            );
            assert!(error.contains("rank 0 for sum of 3 sources in any order"), "{error}");
        }
    });
    assert!(call(2, &ALL, options()).unwrap() == sum);
    let error = refusal(call(1, &[2, 1], options())).to_string();
    assert!(error.contains("of other sources"), "{error}");
    let error = refusal(call(0, &[0, 1], options()));
    assert!(
        matches!(&error, ObjectError::AlreadyExists { id } if id.as_bytes() == b"target"),
        "{error}"
    );
    cluster.client(0).delete(["target"], TIME_LIMIT).unwrap();
    cluster.client(0).put("target", &arrays.reduced(ReduceOp::Sum, &[0])).unwrap();
    let error = refusal(call(1, &ALL, options())).to_string();
    assert!(error.contains("no collective made what is there"), "{error}");
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_rank_after_a_mismatch_of_sources_gets_the_error() {
    let mut cluster = Cluster::start(chained(3));
    for (usual, other) in [
        (LARGE, Arrays { length: LARGE.length + 1, ..LARGE }),
        (Arrays::of_bytes(1000), Arrays::of_bytes(1004)),
    ] {
        put(&cluster, 0, usual, 0);
        put(&cluster, 1, other, 1);
        let call =
            |rank: usize| cluster.client(rank).allreduce("target", ids(&ALL), rank, options());
        let call = &call;
        scope(|scope| {
            let [first, second] = [0, 1].map(|rank| scope.spawn(move || call(rank)));
            let first = first.join().unwrap();
            put(&cluster, 2, usual, 2);
            let last = call(2);
            for error in [first, second.join().unwrap(), last].map(refusal) {
                assert!(matches!(error, ObjectError::TypeMismatch { .. }), "{error}");
                let error = error.to_string();
                assert!(error.contains("array-0") && error.contains("array-1"), "{error}");
            }
        });
        cluster.client(0).delete(ids(&ALL), TIME_LIMIT).unwrap();
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn invalid_ranks_and_repeated_sources_are_refused() {
    let mut cluster = with_sources();
    let client = cluster.client(0);
    let mut out = vec![0; 10];
    for error in [
        refusal(client.allreduce("target", ids(&ALL), 3, options())),
        refusal(client.reduce_scatter("target", ids(&ALL), usize::MAX, options())),
        refusal(client.allgather_into("target", ids(&ALL), 3, &mut out, TIME_LIMIT)),
        refusal(client.barrier("target", 3, 3, TIME_LIMIT)),
        refusal(client.all_to_all("target", &[b"a", b"b"], 2, PutOptions::default())),
        refusal(client.allreduce("target", ids(&[]), 0, options())),
    ] {
        assert!(matches!(error, ObjectError::InvalidRequest { .. }), "{error}");
    }
    let error = refusal(client.allreduce("target", ids(&[0, 1, 0]), 0, options()));
    assert!(
        matches!(&error, ObjectError::DuplicateId { id } if id.as_bytes() == b"array-0"),
        "{error}"
    );
    let error = refusal(client.allreduce("array-0", ids(&ALL), 0, options()));
    assert!(
        matches!(&error, ObjectError::DuplicateId { id } if id.as_bytes() == b"array-0"),
        "{error}"
    );
    let error = client.allreduce_into("target", ids(&ALL), 0, &mut out, options()).unwrap_err();
    assert!(matches!(error, Error::BufferTooSmall { .. }), "{error}");
    assert!(retry("list", || cluster.client(1).list("target", "", 10)).objects.is_empty());
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_repeated_call_of_a_rank_gets_the_same_result_or_an_error() {
    let mut cluster = with_sources();
    let expected = LARGE.reduced(ReduceOp::Sum, &ALL);
    let call = |rank: usize| {
        let client = cluster.client(rank);
        move || client.allreduce("target", ids(&ALL), rank, options())
    };
    scope(|scope| {
        let calls = [0, 1, 1, 2, 2].map(|rank| scope.spawn(call(rank)));
        for result in calls.into_iter().map(|call| call.join().unwrap()) {
            assert!(result.unwrap() == expected);
        }
    });
    let error = refusal(call(0)());
    assert!(
        matches!(&error, ObjectError::AlreadyExists { id } if id.as_bytes() == b"target"),
        "{error}"
    );
    for rank in [1, 2] {
        assert!(call(rank)().unwrap() == expected);
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn too_many_ranks_cause_the_general_path() {
    let mut cluster = Cluster::start(chained(2));
    let arrays = Arrays::of_bytes(1024);
    let all: Vec<u64> = (0..300).collect();
    for number in &all {
        put(&cluster, *number as usize % 2, arrays, *number);
    }
    let expected = arrays.reduced(ReduceOp::Sum, &all);
    scope(|scope| {
        let calls = [0, 1, 150, 299].map(|rank: usize| {
            let (client, sources) = (cluster.client(rank % 2), ids(&all));
            scope.spawn(move || client.allreduce("target", sources, rank, options()))
        });
        for call in calls {
            assert!(call.join().unwrap().unwrap() == expected);
        }
    });
    let plan = record(&cluster, 0, "target").plan;
    let reasons = ["there are too many members", "not all sources came in time"];
    assert!(
        reasons.iter().any(|reason| plan.contains(&format!("no session, since {reason}"))),
        "{plan}"
    );
    assert_nothing_left(&mut cluster);
}
