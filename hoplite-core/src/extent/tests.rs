use proptest::prelude::*;

use super::*;

fn check(allocator: &Allocator, allocated: &[Extent]) {
    let mut in_order = allocated.to_vec();
    in_order.sort();
    let mut end = 0;
    for extent in &in_order {
        assert!(extent.offset_bytes >= end, "{extent:?} overlaps the one before it");
        assert_eq!(extent.offset_bytes % GRANULE_BYTES, 0);
        assert_eq!(extent.length_bytes % GRANULE_BYTES, 0);
        end = extent.offset_bytes + extent.length_bytes;
    }
    assert!(end <= allocator.capacity_bytes());
    let used: u64 = allocated.iter().map(|extent| extent.length_bytes).sum();
    assert_eq!(allocator.free_bytes(), allocator.capacity_bytes() - used);
    assert_eq!(allocator.largest_free_bytes(), largest_gap(allocator.capacity_bytes(), &in_order));
}

fn largest_gap(capacity_bytes: u64, in_order: &[Extent]) -> u64 {
    let mut largest = 0;
    let mut end = 0;
    for extent in in_order {
        largest = largest.max(extent.offset_bytes - end);
        end = extent.offset_bytes + extent.length_bytes;
    }
    largest.max(capacity_bytes - end)
}

#[test]
fn bins_are_ordered_by_length_and_rounding_up_never_finds_a_shorter_range() {
    let mut lengths: Vec<u64> = (1..5000).collect();
    lengths.extend((12..58).flat_map(|log2| [(1 << log2) - 1, 1 << log2, (1 << log2) + 1]));
    lengths.sort();
    for pair in lengths.windows(2) {
        assert!(Bin::of(pair[0]) <= Bin::of(pair[1]));
    }
    for length in lengths {
        let bin = Bin::at_least(length);
        assert!(bin >= Bin::of(length));
        assert!(Bin::of(length - 1) < bin, "a range of {} is in a bin for {length}", length - 1);
    }
}

#[test]
fn the_whole_arena_can_be_one_extent() {
    for capacity_bytes in [64, 128, 4096, 1_000_000, 1 << 30, (1 << 40) + 64, 1 << 50] {
        let mut allocator = Allocator::new(capacity_bytes + 63);
        let whole = capacity_bytes / 64 * 64;
        assert_eq!(allocator.capacity_bytes(), whole, "what is no whole granule is left out");
        let extent = allocator.allocate(whole).unwrap();
        assert_eq!(extent, Extent { offset_bytes: 0, length_bytes: whole });
        allocator.free(extent);
        assert_eq!(allocator.largest_free_bytes(), allocator.capacity_bytes());
    }
}

#[test]
fn lengths_are_rounded_up_and_absurd_ones_refused() {
    let mut allocator = Allocator::new(1 << 20);
    assert_eq!(allocator.allocate(1).unwrap().length_bytes, 64);
    assert_eq!(allocator.allocate(64).unwrap().length_bytes, 64);
    assert_eq!(allocator.allocate(65).unwrap().length_bytes, 128);
    assert_eq!(allocator.allocate(0).unwrap().length_bytes, 64);
    assert_eq!(allocator.allocate(u64::MAX), None);
    assert_eq!(allocator.allocate(1 << 20), None);
}

#[test]
fn an_arena_of_nothing_refuses_everything() {
    let mut allocator = Allocator::new(63);
    assert_eq!(allocator.capacity_bytes(), 0);
    assert_eq!(allocator.largest_free_bytes(), 0);
    assert_eq!(allocator.allocate(0), None);
}

#[test]
fn a_range_that_is_just_long_enough_is_found_although_its_bin_holds_shorter_ones_too() {
    // Lengths of 1000 to 1015 granules share a bin.
    let lengths = [1001, 1008, 1002].map(|granules| granules * GRANULE_BYTES);
    let separator = GRANULE_BYTES;
    let mut allocator = Allocator::new(lengths.iter().sum::<u64>() + 2 * separator);
    let first = allocator.allocate(lengths[0]).unwrap();
    let _kept = allocator.allocate(separator).unwrap();
    let second = allocator.allocate(lengths[1]).unwrap();
    let _kept = allocator.allocate(separator).unwrap();
    let third = allocator.allocate(lengths[2]).unwrap();
    assert_eq!(allocator.free_bytes(), 0);
    for extent in [first, second, third] {
        allocator.free(extent);
    }
    assert_eq!(allocator.allocate(lengths[1]), Some(second));
    assert_eq!(allocator.allocate(lengths[1]), None);
    assert_eq!(allocator.allocate(lengths[2]), Some(third));
}

#[test]
fn neighbours_are_merged_whatever_the_order() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut allocator = Allocator::new(3 << 20);
        let extents = [(); 3].map(|()| allocator.allocate(1 << 20).unwrap());
        for index in order {
            allocator.free(extents[index]);
        }
        assert_eq!(allocator.largest_free_bytes(), 3 << 20);
    }
}

#[test]
fn entries_of_merged_ranges_are_used_again() {
    let mut allocator = Allocator::new(1 << 20);
    for _ in 0..1000 {
        let extents: Vec<Extent> = (0..100).map(|_| allocator.allocate(1000).unwrap()).collect();
        for extent in extents {
            allocator.free(extent);
        }
    }
    assert!(allocator.ranges.len() <= 101, "{} entries", allocator.ranges.len());
}

#[test]
#[should_panic(expected = "freed but not allocated")]
fn freeing_twice_panics() {
    let mut allocator = Allocator::new(4096);
    let extent = allocator.allocate(128).unwrap();
    allocator.free(extent);
    allocator.free(extent);
}

#[test]
#[should_panic(expected = "freed but not allocated")]
fn freeing_a_part_of_an_extent_panics() {
    let mut allocator = Allocator::new(4096);
    let extent = allocator.allocate(128).unwrap();
    allocator.free(Extent { length_bytes: 64, ..extent });
}

#[derive(Debug, Clone)]
enum Step {
    Allocate(u64),
    Free(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0_u64..3000).prop_map(Step::Allocate),
        2 => (0_u64..100_000).prop_map(Step::Allocate),
        4 => any::<prop::sample::Index>().prop_map(Step::Free),
    ]
}

proptest! {
    #[test]
    fn extents_are_disjoint_and_refused_only_when_nothing_fits(
        capacity_bytes in 0_u64..1_000_000,
        steps in prop::collection::vec(step(), 0..300),
    ) {
        let mut allocator = Allocator::new(capacity_bytes);
        let mut allocated = Vec::new();
        for step in steps {
            match step {
                Step::Allocate(length_bytes) => {
                    let rounded = length_bytes.div_ceil(64).max(1) * 64;
                    let largest = allocator.largest_free_bytes();
                    match allocator.allocate(length_bytes) {
                        Some(extent) => {
                            prop_assert_eq!(extent.length_bytes, rounded);
                            allocated.push(extent);
                        }
                        None => prop_assert!(rounded > largest, "refused {rounded} with {largest} free"),
                    }
                }
                Step::Free(index) => {
                    if !allocated.is_empty() {
                        allocator.free(allocated.swap_remove(index.index(allocated.len())));
                    }
                }
            }
            check(&allocator, &allocated);
        }
        for extent in allocated.drain(..) {
            allocator.free(extent);
        }
        check(&allocator, &allocated);
        if capacity_bytes >= 64 {
            prop_assert!(allocator.allocate(allocator.capacity_bytes()).is_some());
        }
    }
}
