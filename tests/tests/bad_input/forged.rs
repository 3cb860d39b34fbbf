#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use hoplite_tests::cluster::Cluster;
use hoplite_tests::contents::bytes;

use super::TIME_LIMIT;

const HEADER_BYTES: u64 = 64;

struct Arena(File);

impl Arena {
    fn of(store: u32) -> Self {
        let is_arena = |path: &std::path::Path| {
            fs::read_link(path)
                .is_ok_and(|target| target.to_string_lossy().contains("memfd:hoplite-arena"))
        };
        let descriptors = fs::read_dir(format!("/proc/{store}/fd")).unwrap();
        let path =
            descriptors.map(|entry| entry.unwrap().path()).find(|path| is_arena(path)).unwrap();
        Self(File::options().read(true).write(true).open(path).unwrap())
    }

    fn forge(&self, bytes: &[u8], header: [u8; HEADER_BYTES as usize]) {
        let length = self.0.metadata().unwrap().len();
        let mut all = vec![0; usize::try_from(length).unwrap()];
        self.0.read_exact_at(&mut all, 0).unwrap();
        let starts = (HEADER_BYTES as usize..all.len()).step_by(HEADER_BYTES as usize);
        let found: Vec<usize> = starts.filter(|start| all[*start..].starts_with(bytes)).collect();
        assert_eq!(found.len(), 1, "copies of the object in the arena");
        self.0.write_all_at(&header, found[0] as u64 - HEADER_BYTES).unwrap();
    }
}

#[test]
fn a_forged_header_does_not_block_readers() {
    for (seed, size) in [(1, 1000), (2, 20_000), (3, 3 << 20)] {
        let mut cluster = Cluster::of(2);
        let (client, other) = (cluster.client(0), cluster.client(0));
        let contents = bytes(seed, size);
        client.put("x", &contents).unwrap();
        let view = other.get("x", TIME_LIMIT).unwrap();
        let arena = Arena::of(cluster.store(0).pid());
        let failed = {
            let mut header = [0; HEADER_BYTES as usize];
            header[28] = 2;
            header
        };
        for header in [[0; HEADER_BYTES as usize], [0xff; HEADER_BYTES as usize], failed] {
            arena.forge(&contents[..100], header);
            assert!(view[..] == contents[..], "a view that was made before");
            for client in [&client, &other] {
                assert!(client.get("x", TIME_LIMIT).unwrap()[..] == contents[..], "{size} bytes");
                assert!(client.get_vec("x", TIME_LIMIT).unwrap() == contents, "{size} bytes");
                let mut out = vec![0; size];
                assert_eq!(client.get_into("x", &mut out, TIME_LIMIT).unwrap(), size);
                assert!(out == contents);
                let mut reader = client.get_reader("x", TIME_LIMIT).unwrap();
                let mut read = Vec::new();
                loop {
                    let length = reader.read(&mut out, TIME_LIMIT).unwrap();
                    if length == 0 {
                        break;
                    }
                    read.extend_from_slice(&out[..length]);
                }
                assert!(read == contents, "{size} bytes");
            }
            client.put("x", &contents).unwrap();
        }
        assert!(
            cluster.client(1).get("x", TIME_LIMIT).unwrap()[..] == contents[..],
            "{size} bytes"
        );
        cluster.assert_serves();
    }
}
