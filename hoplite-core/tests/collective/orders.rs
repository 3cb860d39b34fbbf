use std::time::Duration;

use hoplite_core::link::Uplink;
use hoplite_core::plan::collective::{
    self, Arrangement, Program, Schedule, SchedulePreference, SlowLinks, Step, estimate,
};
use hoplite_core::plan::link::LinkEstimate;
use hoplite_core::topology::place::{Path, groups_of, is_in};
use proptest::prelude::*;

const LINK: LinkEstimate = LinkEstimate {
    bytes_per_second: 25_000_000,
    latency: Duration::from_micros(100),
    uplink: Uplink::measured(0),
};
const UNIT_BYTES: u64 = 64;

fn arrange(
    paths: &[Path],
    size_bytes: u64,
    link: LinkEstimate,
    preference: SchedulePreference,
) -> Arrangement {
    collective::arrange(paths, &SlowLinks::new(), size_bytes, link, preference)
}

fn alternating(racks: usize, members: usize) -> Vec<Path> {
    (0..racks * members).map(|member| [0, 0, 1 + (member % racks) as u32, 0]).collect()
}

fn any_paths() -> impl Strategy<Value = Vec<Path>> {
    prop::collection::vec((0_u32..3, 0_u32..4).prop_map(|(pod, rack)| [0, pod, rack, 0]), 2..40)
}

fn any_preference() -> impl Strategy<Value = SchedulePreference> {
    prop_oneof![
        3 => Just(SchedulePreference::Auto),
        1 => Just(SchedulePreference::Ring),
        1 => Just(SchedulePreference::HalvingDoubling),
        1 => Just(SchedulePreference::Hdrm),
        1 => Just(SchedulePreference::Hierarchical),
    ]
}

fn programs(schedule: &Schedule, size_bytes: u64) -> Vec<Program> {
    (0..schedule.members()).map(|index| schedule.program(index, size_bytes)).collect()
}

fn crossing(arrangement: &Arrangement, paths: &[Path], size_bytes: u64, group: Path) -> [u64; 2] {
    let mut crossing = [0; 2];
    let is_inside = |rank: usize| is_in(paths[arrangement.order[rank]], group);
    for (rank, program) in programs(&arrangement.choice.schedule, size_bytes).iter().enumerate() {
        for step in program.steps() {
            if let Step::Send { range, to } = step
                && is_inside(rank) != is_inside(*to)
            {
                crossing[usize::from(is_inside(*to))] += range.end - range.start;
            }
        }
    }
    crossing
}

fn slow_streams(arrangement: &Arrangement, slow: &SlowLinks) -> SlowLinks {
    let order = &arrangement.order;
    let programs = programs(&arrangement.choice.schedule, 1 << 20).into_iter().enumerate();
    let sends = programs.flat_map(|(rank, program)| {
        let to = |step: &Step| match step {
            Step::Send { to, .. } => Some(*to),
            Step::Receive { .. } => None,
        };
        program.steps().iter().filter_map(to).map(|to| (order[rank], order[to])).collect::<Vec<_>>()
    });
    sends.filter(|stream| slow.contains(stream)).collect()
}

#[test]
fn a_ring_goes_around_a_slow_link() {
    let slow = SlowLinks::from([(2, 3)]);
    let flat = vec![[0; 4]; 8];
    let chosen = collective::arrange(&flat, &slow, 64 << 20, LINK, SchedulePreference::Auto);
    assert_eq!(chosen.choice.schedule, Schedule::ring(8));
    assert_eq!(
        (chosen.remark.as_str(), slow_streams(&chosen, &slow)),
        ("around slow links", SlowLinks::new())
    );
    let paths = alternating(2, 4);
    let slow = SlowLinks::from([(2, 4), (3, 5), (6, 1)]);
    let chosen = collective::arrange(&paths, &slow, 64 << 20, LINK, SchedulePreference::Ring);
    assert_eq!(slow_streams(&chosen, &slow), SlowLinks::new());
    let racks: Vec<u32> = chosen.order.iter().map(|member| paths[*member][2]).collect();
    assert!(racks.is_sorted(), "{racks:?}");
}

#[test]
fn a_slow_link_that_no_stream_uses_is_not_spoken_of() {
    let slow = SlowLinks::from([(0, 4)]);
    let chosen = collective::arrange(&[[0; 4]; 8], &slow, 64 << 20, LINK, SchedulePreference::Auto);
    assert_eq!((chosen.order, chosen.remark.as_str()), ((0..8).collect(), ""));
    let parts = collective::arrange_parts(&[[0; 4]; 8], &slow, 64 << 20, LINK);
    assert_eq!(parts.remark, "");
}

#[test]
fn what_cannot_go_around_is_estimated_at_twice_the_time() {
    let slow: SlowLinks = (1..4).map(|to| (0, to)).collect();
    let flat = vec![[0; 4]; 4];
    let chosen = collective::arrange(&flat, &slow, 64 << 20, LINK, SchedulePreference::Ring);
    assert_eq!(chosen.order, [0, 1, 2, 3]);
    assert_eq!(chosen.remark, "as the setting says, over a slow link");
    let usual = arrange(&flat, 64 << 20, LINK, SchedulePreference::Ring).choice.estimate;
    assert!(chosen.choice.estimate > usual.mul_f64(1.99));
}

proptest! {
    #[test]
    fn slow_links_never_make_a_ring_worse(
        paths in any_paths(), links in prop::collection::btree_set((0_usize..40, 0_usize..40), 0..20),
    ) {
        let members = paths.len();
        let slow: SlowLinks = links.into_iter().filter(|(from, to)| from.max(to) < &members && from != to).collect();
        let preference = SchedulePreference::Ring;
        let usual = arrange(&paths, 1 << 20, LINK, preference);
        let chosen = collective::arrange(&paths, &slow, 1 << 20, LINK, preference);
        let of_rank = |arrangement: &Arrangement| -> Vec<Path> {
            arrangement.order.iter().map(|member| paths[*member]).collect()
        };
        prop_assert_eq!(of_rank(&chosen), of_rank(&usual));
        let mut sorted = chosen.order.clone();
        sorted.sort_unstable();
        prop_assert_eq!(sorted, (0..members).collect::<Vec<_>>());
        prop_assert!(slow_streams(&chosen, &slow).len() <= slow_streams(&usual, &slow).len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn each_member_has_one_rank_and_groups_are_contiguous(
        paths in any_paths(), size_bytes in 0_u64..1 << 30, preference in any_preference(),
    ) {
        let arrangement = arrange(&paths, size_bytes, LINK, preference);
        let mut sorted = arrangement.order.clone();
        sorted.sort_unstable();
        prop_assert_eq!(sorted, (0..paths.len()).collect::<Vec<_>>());
        prop_assert_eq!(arrangement.choice.schedule.members(), paths.len());
        if preference != SchedulePreference::Hdrm {
            for group in paths.iter().flat_map(|path| groups_of(*path)) {
                let inside = |member: &usize| is_in(paths[*member], group);
                let runs = arrangement.order.chunk_by(|a, b| inside(a) == inside(b));
                prop_assert_eq!(runs.filter(|run| inside(&run[0])).count(), 1, "{:?}", group);
            }
        }
    }

    #[test]
    fn what_is_chosen_is_the_cheapest(paths in any_paths(), size_bytes in 0_u64..1 << 27) {
        let Arrangement { order, choice, .. } = arrange(&paths, size_bytes, LINK, SchedulePreference::Auto);
        let ordered: Vec<Path> = order.iter().map(|member| paths[*member]).collect();
        let members = paths.len();
        for other in [Schedule::ring(members), Schedule::halving_doubling(members)] {
            prop_assert!(choice.estimate <= estimate(&other, size_bytes, LINK, &ordered, &SlowLinks::new()), "{}", other);
        }
        prop_assert!(choice.runner_up.is_none_or(|(_, estimate)| estimate >= choice.estimate));
    }

    #[test]
    fn a_ring_enters_each_group_once(paths in any_paths(), size_bytes in 0_u64..1 << 20) {
        let arrangement = arrange(&paths, size_bytes, LINK, SchedulePreference::Ring);
        let members = paths.len() as u64;
        let limit = 2 * (size_bytes * (members - 1)).div_ceil(members) + 2 * UNIT_BYTES * members;
        for group in paths.iter().flat_map(|path| groups_of(*path)) {
            let crossing = crossing(&arrangement, &paths, size_bytes, group);
            prop_assert!(crossing.iter().all(|bytes| *bytes <= limit), "{:?} of {}", crossing, limit);
        }
    }

    #[test]
    fn a_hierarchy_puts_no_more_on_an_uplink_than_racks_need(
        racks in 2_usize..6, members in 2_usize..7, size_bytes in 0_u64..1 << 20,
    ) {
        let paths = alternating(racks, members);
        let arrangement = arrange(&paths, size_bytes, LINK, SchedulePreference::Hierarchical);
        prop_assert_eq!(arrangement.choice.schedule.radices(), [members, racks]);
        let needed = 2 * (size_bytes * (racks as u64 - 1)).div_ceil(racks as u64);
        let limit = needed + 4 * UNIT_BYTES * paths.len() as u64;
        for rack in &paths[..racks] {
            let crossing = crossing(&arrangement, &paths, size_bytes, *rack);
            prop_assert!(crossing.iter().all(|bytes| *bytes <= limit), "{:?} of {}", crossing, limit);
        }
    }

    #[test]
    fn without_groups_nothing_is_different(members in 2_usize..70, size_bytes in 0_u64..1 << 27) {
        let [none, one] = [[0; 4], [0, 0, 7, 0]].map(|path| {
            arrange(&vec![path; members], size_bytes, LINK, SchedulePreference::Auto)
        });
        prop_assert_eq!(&none.order, &(0..members).collect::<Vec<_>>());
        prop_assert_eq!(none, one);
    }
}

#[test]
fn two_racks_whose_members_alternate_are_a_ring_that_crosses_twice() {
    let paths = alternating(2, 4);
    let arrangement = arrange(&paths, 64 << 20, LINK, SchedulePreference::Auto);
    assert_eq!(arrangement.order, [0, 2, 4, 6, 1, 3, 5, 7]);
    assert_eq!(arrangement.choice.schedule, Schedule::ring(8));
    assert_ne!(
        arrange(&paths, 4 << 10, LINK, SchedulePreference::Auto).choice.schedule,
        Schedule::ring(8)
    );
}

#[test]
fn slow_uplinks_that_were_measured_make_a_hierarchy_pay() {
    let paths = alternating(2, 4);
    let chosen = |permille, size_bytes| {
        let link = LinkEstimate { uplink: Uplink::measured(permille), ..LINK };
        let arrangement = arrange(&paths, size_bytes, link, SchedulePreference::Auto);
        (arrangement.choice.schedule, arrangement.remark)
    };
    // S bytes, links of rate B, uplinks of rate U: a ring takes 1.75 S/U, the hierarchy 1.5 S/B +
    // S/U, which is less if U < B/2.
    let hierarchical = Schedule::hierarchical(8, &[4, 2]).unwrap();
    assert_eq!(chosen(250, 64 << 20), (hierarchical.clone(), "uplinks as measured".to_owned()));
    assert_eq!(chosen(450, 64 << 20).0, hierarchical);
    for permille in [550, 1000, 4000] {
        assert_eq!(chosen(permille, 64 << 20).0, Schedule::ring(8), "{permille}");
    }
    let assumed = "an uplink is taken for as fast as one host".to_owned();
    assert_eq!(chosen(0, 64 << 20), (Schedule::ring(8), assumed));
}

#[test]
fn the_stages_follow_the_levels_whose_uplinks_are_slow() {
    // Members alternate between two zones of four racks.
    let paths: Vec<Path> = (0..32).map(|member| [1 + member % 2, 0, 1 + member % 8, 0]).collect();
    let chosen = |zone, rack| {
        let link = LinkEstimate { uplink: Uplink::of_levels([zone, 0, rack, 0]), ..LINK };
        let arrangement = arrange(&paths, 256 << 20, link, SchedulePreference::Auto);
        let choice = arrangement.choice;
        assert!(choice.runner_up.is_some_and(|(_, estimate)| estimate >= choice.estimate));
        (choice.schedule.to_string(), choice.estimate)
    };
    assert_eq!(chosen(100, 4000).0, "hierarchical of 16x2");
    assert_eq!(chosen(100, 1000).0, "hierarchical of 16x2");
    assert_eq!(chosen(4000, 100).0, "hierarchical of 4x8");
    assert_eq!(chosen(20, 100).0, "hierarchical of 4x4x2");
    assert_eq!(chosen(4000, 4000).0, "ring of 32");
    let one = Uplink::measured(100);
    let link = LinkEstimate { uplink: one, ..LINK };
    let all_slow = arrange(&paths, 256 << 20, link, SchedulePreference::Auto).choice;
    let by_level = chosen(100, 1000);
    assert!(all_slow.schedule.to_string() != by_level.0 && all_slow.estimate > by_level.1);
}

#[test]
fn the_first_of_three_levels_may_be_the_slow_one() {
    let paths: Vec<Path> = (0..16).map(|member| [0, 0, 1 + member / 8, 1 + member / 2]).collect();
    let chosen = |rack, host| {
        let link = LinkEstimate { uplink: Uplink::of_levels([0, 0, rack, host]), ..LINK };
        arrange(&paths, 64 << 20, link, SchedulePreference::Auto).choice.schedule.to_string()
    };
    assert_eq!(chosen(100, 2000), "hierarchical of 8x2");
    assert_eq!(chosen(8000, 100), "hierarchical of 2x8");
}

#[test]
fn what_is_forced_is_taken_and_what_does_not_fit_is_not() {
    let chosen = |paths: &[Path], preference| {
        let arrangement = arrange(paths, 1 << 10, LINK, preference);
        (arrangement.choice.schedule.to_string(), arrangement.remark)
    };
    let flat = [[0; 4]; 8];
    assert_eq!(chosen(&flat, SchedulePreference::Ring).0, "ring of 8");
    assert_eq!(chosen(&flat, SchedulePreference::HalvingDoubling).0, "halving-doubling of 8");
    for preference in [SchedulePreference::Hierarchical, SchedulePreference::Hdrm] {
        assert!(chosen(&flat, preference).1.contains("does not fit"));
    }
    let uneven = &alternating(2, 4)[..7];
    assert!(chosen(uneven, SchedulePreference::Hierarchical).1.contains("does not fit"));
    assert_eq!(
        chosen(&alternating(3, 4), SchedulePreference::Hierarchical).0,
        "hierarchical of 4x3"
    );
}

#[test]
fn with_hdrm_the_slow_links_of_its_own_order_count() {
    let paths: Vec<Path> = (0..16).map(|host| [0, 1 + host % 2, 1 + host / 2 % 4, 0]).collect();
    let usual = arrange(&paths, 64 << 20, LINK, SchedulePreference::Hdrm);
    let mut used = 0;
    for link in
        (0..16).flat_map(|from| (0..16).map(move |to| (from, to))).filter(|(from, to)| from != to)
    {
        let slow = SlowLinks::from([link]);
        let chosen = collective::arrange(&paths, &slow, 64 << 20, LINK, SchedulePreference::Hdrm);
        assert_eq!(chosen.order, usual.order);
        if slow_streams(&chosen, &slow).is_empty() {
            assert_eq!(
                (chosen.choice.estimate, &chosen.remark),
                (usual.choice.estimate, &usual.remark)
            );
        } else {
            assert!(
                chosen.choice.estimate > usual.choice.estimate
                    && chosen.remark.ends_with("over a slow link")
            );
            used += 1;
        }
    }
    assert_eq!(used, 16 * 4, "each member gives to four others");
}

#[test]
fn with_hdrm_every_step_crosses_between_the_halves() {
    let paths: Vec<Path> = (0..16).map(|host| [0, 1 + host % 2, 1 + host / 2 % 4, 0]).collect();
    let arrangement = arrange(&paths, 1 << 20, LINK, SchedulePreference::Hdrm);
    assert_eq!(arrangement.choice.schedule, Schedule::halving_doubling(16));
    let half = |rank: usize| paths[arrangement.order[rank]][1];
    let mut sends = 0;
    for (rank, program) in programs(&arrangement.choice.schedule, 1 << 20).iter().enumerate() {
        for step in program.steps() {
            if let Step::Send { to, .. } = step {
                assert_ne!(half(rank), half(*to), "{rank} sends to {to}");
                sends += 1;
            }
        }
    }
    assert_eq!(sends, 16 * 8, "each member sends in each of eight steps");
}
