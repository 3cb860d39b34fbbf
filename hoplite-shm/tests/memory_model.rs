//! Tests progress with loom's atomics, in all orders of two or three threads.

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Notify};
use loom::thread;

use progress::{Progress, State};

mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

#[path = "../src/progress.rs"]
pub mod progress;

const BYTES: usize = 2;

#[derive(Debug, Default)]
struct Object {
    progress: Progress,
    bytes: [AtomicU32; BYTES],
}

impl Object {
    fn write(&self, index: usize) {
        self.bytes[index].store(1, Ordering::Relaxed);
    }

    fn assert_written(&self, count: u64) {
        for byte in &self.bytes[..usize::try_from(count).expect("the model has a few bytes")] {
            assert_eq!(byte.load(Ordering::Relaxed), 1, "a byte below the progress is missing");
        }
    }
}

fn write_all(object: &Object, bell: &Notify) {
    for index in 0..BYTES {
        object.write(index);
        object.progress.publish(index as u64 + 1);
        if object.progress.take_doorbell_request() {
            bell.notify();
        }
    }
}

#[test]
fn no_wake_up_is_lost_and_no_byte_below_the_progress_is_missing() {
    loom::model(|| {
        let (object, bell) = (Arc::new(Object::default()), Arc::new(Notify::new()));
        let writer = thread::spawn({
            let (object, bell) = (Arc::clone(&object), Arc::clone(&bell));
            move || write_all(&object, &bell)
        });
        // The store's side. If the bell does not ring, loom reports a deadlock.
        loop {
            let valid_bytes = object.progress.want();
            object.assert_written(valid_bytes);
            if valid_bytes == BYTES as u64 {
                break;
            }
            bell.wait();
        }
        writer.join().unwrap();
    });
}

#[test]
fn a_reader_that_does_not_wait_sees_every_byte_below_the_progress() {
    loom::model(|| {
        let object = Arc::new(Object::default());
        let writer = thread::spawn({
            let object = Arc::clone(&object);
            move || write_all(&object, &Notify::new())
        });
        let first = object.progress.valid_bytes();
        object.assert_written(first);
        let second = object.progress.valid_bytes();
        assert!(second >= first, "progress never falls");
        object.assert_written(second);
        writer.join().unwrap();
    });
}

#[test]
fn a_complete_object_is_fully_visible() {
    loom::model(|| {
        let object = Arc::new(Object::default());
        let store = thread::spawn({
            let object = Arc::clone(&object);
            move || {
                (0..BYTES).for_each(|index| object.write(index));
                object.progress.publish(BYTES as u64);
                object.progress.end(State::Complete);
            }
        });
        if object.progress.state() == State::Complete {
            assert_eq!(object.progress.valid_bytes(), BYTES as u64);
            object.assert_written(BYTES as u64);
        }
        store.join().unwrap();
    });
}

#[test]
fn an_object_has_one_end() {
    loom::model(|| {
        let object = Arc::new(Object::default());
        object.progress.initialise();
        let store = thread::spawn({
            let object = Arc::clone(&object);
            move || object.progress.end(State::Failed)
        });
        object.progress.end(State::Complete);
        let seen = object.progress.state();
        assert_ne!(seen, State::Open);
        store.join().unwrap();
        assert_eq!(object.progress.state(), seen, "the first end is final");
    });
}
