use hoplite_client::ReduceOptions;
use hoplite_tests::cluster::{Cluster, Plan};

use super::*;

#[test]
fn with_two_shards_one_may_die_in_the_middle() {
    for victim in 0..2 {
        let mut cluster = Cluster::start(Plan { shards: 2, ..chained(5) });
        let unfinished = halves(&cluster, 3);
        let numbers = [1, 2, 3, 4, 5];
        std::thread::scope(|scope| {
            let running = start(scope, &cluster, 0, "target", &numbers, ReduceOptions::default());
            let early = start(scope, &cluster, 0, "early", &[1, 2, 3], ReduceOptions::default());
            drop(await_half(&cluster, 4, "early", &[1, 2, 3]));
            cluster.kill_shard(victim);
            put(&cluster, 4, LARGE, 4);
            drop(await_half(&cluster, 1, "early", &[1, 2, 3]));
            cluster.restart_shard(victim);
            for node in 0..5 {
                cluster.await_sessions(node);
            }
            put(&cluster, 0, LARGE, 5);
            finish_all(unfinished);
            for running in [early, running] {
                running.join().unwrap().unwrap();
            }
        });
        assert_sum(&cluster, "early", &[1, 2, 3]);
        assert_sum(&cluster, "target", &numbers);
        assert_nothing_left(&mut cluster);
    }
}

#[test]
fn a_reduce_outlasts_the_restart_of_the_only_shard() {
    let mut cluster = Cluster::start(chained(4));
    let unfinished = halves(&cluster, 3);
    std::thread::scope(|scope| {
        let running = start(scope, &cluster, 0, "target", &[1, 2, 3], ReduceOptions::default());
        drop(await_half(&cluster, 0, "target", &[1, 2, 3]));
        cluster.kill_shard(0);
        (0..4).for_each(|node| cluster.await_lost_sessions(node));
        let late = start(scope, &cluster, 1, "late", &[2, 3], ReduceOptions::default());
        cluster.restart_shard(0);
        finish_all(unfinished);
        for running in [running, late] {
            running.join().unwrap().unwrap();
        }
    });
    for node in 0..4 {
        cluster.await_sessions(node);
    }
    assert_sum(&cluster, "target", &[1, 2, 3]);
    assert_sum(&cluster, "late", &[2, 3]);
    assert_nothing_left(&mut cluster);
}
