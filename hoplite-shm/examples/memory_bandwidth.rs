//! Measures the figures in this crate's comments.
//!
//! `cargo run --release -p hoplite-shm --example memory_bandwidth [MIB]`
#![expect(clippy::print_stdout, reason = "this program prints what it measures")]

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use hoplite_shm::{Arena, Backing, Error, Extent, HEADER_BYTES, Mapping, Writer};

const ROUNDS: usize = 9;

fn main() -> Result<(), Error> {
    let mebibytes =
        std::env::args().nth(1).and_then(|argument| argument.parse().ok()).unwrap_or(1024);
    let size_bytes: u64 = mebibytes << 20;
    let extent = Extent { offset_bytes: 0, length_bytes: size_bytes + HEADER_BYTES };
    let source: Vec<u8> = (0..size_bytes).map(|index| (index % 251) as u8).collect();
    let mut target = vec![1; source.len()];

    let arena = Arena::create(Backing::Pages, size_bytes + (1 << 20))?;
    let buffer = arena.buffer(extent, size_bytes)?;
    measure("prefault the arena", size_bytes, || arena.prefault(|_| ControlFlow::Continue(())))?;

    let mapping = writable(&arena)?;
    measure("populate a writable mapping", size_bytes, || {
        mapping.populate(|_| ControlFlow::Continue(()));
        Ok(())
    })?;
    best_of_each(
        size_bytes,
        &mut [
            ("memcpy into warm shared memory", &mut || {
                buffer.write(0, &source);
                Ok(())
            }),
            ("put, warm mapping", &mut || fill(&mut begin(&buffer, &mapping, extent)?, &source)),
            ("put, cold mapping", &mut || {
                fill(&mut begin(&buffer, &writable(&arena)?, extent)?, &source)
            }),
        ],
    )?;

    buffer.set_complete();
    best_of("memcpy out of warm shared memory", size_bytes, || {
        buffer.read(0, &mut target);
        Ok(())
    })?;
    best_of("copying get, cold mapping", size_bytes, || {
        read_only(&arena)?.reader(extent, size_bytes)?.copy_to(0, &mut target)
    })?;
    let mapping = read_only(&arena)?;
    let reader = mapping.reader(extent, size_bytes)?;
    best_of("copying get, warm mapping", size_bytes, || reader.copy_to(0, &mut target))?;

    best_of("crc32c of private memory", size_bytes, || {
        std::hint::black_box(hoplite_core::checksum::crc32c(&target));
        Ok(())
    })?;
    best_of("crc32c of the arena", size_bytes, || {
        std::hint::black_box(buffer.crc32c(0..size_bytes));
        Ok(())
    })?;
    let frame = &target[..1 << 20];
    let rounds = size_bytes >> 20;
    best_of("crc32c of private memory, 1 MiB again and again", size_bytes, || {
        (0..rounds).for_each(|_| {
            std::hint::black_box(hoplite_core::checksum::crc32c(std::hint::black_box(frame)));
        });
        Ok(())
    })?;
    best_of("crc32c of the arena, 1 MiB again and again", size_bytes, || {
        (0..rounds).for_each(|_| {
            std::hint::black_box(buffer.crc32c(0..1 << 20));
        });
        Ok(())
    })?;
    assert!(source == target, "the copy equals its source");
    Ok(())
}

fn begin(
    buffer: &hoplite_shm::Buffer,
    mapping: &Arc<Mapping>,
    extent: Extent,
) -> Result<Writer, Error> {
    buffer.initialise();
    mapping.writer(extent, buffer.size_bytes())
}

fn fill(writer: &mut Writer, source: &[u8]) -> Result<(), Error> {
    writer.write(source, || {})
}

fn writable(arena: &Arena) -> Result<Arc<Mapping>, Error> {
    let fd = arena.writable_fd().try_clone_to_owned().expect("this process may open one more file");
    Mapping::writable(fd, arena.capacity_bytes())
}

fn read_only(arena: &Arena) -> Result<Arc<Mapping>, Error> {
    let fd =
        arena.read_only_fd().try_clone_to_owned().expect("this process may open one more file");
    Mapping::read_only(fd, arena.capacity_bytes())
}

fn best_of(
    name: &str,
    size_bytes: u64,
    mut action: impl FnMut() -> Result<(), Error>,
) -> Result<(), Error> {
    best_of_each(size_bytes, &mut [(name, &mut action)])
}

type Action<'a> = (&'a str, &'a mut dyn FnMut() -> Result<(), Error>);

fn best_of_each(size_bytes: u64, actions: &mut [Action<'_>]) -> Result<(), Error> {
    let mut best = vec![f64::INFINITY; actions.len()];
    for _ in 0..ROUNDS {
        for ((_, action), best) in actions.iter_mut().zip(&mut best) {
            let start = Instant::now();
            action()?;
            *best = best.min(start.elapsed().as_secs_f64());
        }
    }
    for ((name, _), best) in actions.iter().zip(best) {
        print(name, size_bytes, best);
    }
    Ok(())
}

fn measure(
    name: &str,
    size_bytes: u64,
    action: impl FnOnce() -> Result<(), Error>,
) -> Result<(), Error> {
    let start = Instant::now();
    action()?;
    print(name, size_bytes, start.elapsed().as_secs_f64());
    Ok(())
}

fn print(name: &str, size_bytes: u64, seconds: f64) {
    println!("{name:48} {:8.1} ms {:6.2} GB/s", seconds * 1e3, size_bytes as f64 / seconds / 1e9);
}
