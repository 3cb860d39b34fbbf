use hoplite_core::plan::collective::{Collective, Schedule};
use proptest::prelude::*;

use super::interpreter::Interpreter;

fn schedule() -> impl Strategy<Value = Schedule> {
    let any = (1_usize..20).prop_flat_map(|members| {
        prop_oneof![
            Just(Schedule::ring(members)),
            Just(Schedule::halving_doubling(members)),
            prop::collection::vec(2_usize..5, 1..4).prop_map(move |radices| {
                let core: usize = radices.iter().product();
                Schedule::hierarchical(core + members % (core + 1), &radices).unwrap()
            }),
        ]
    });
    any.prop_filter("few members", |schedule| schedule.members() <= 40)
}

fn kind() -> impl Strategy<Value = Collective> {
    prop_oneof![
        3 => Just(Collective::Allreduce),
        1 => Just(Collective::ReduceScatter),
        1 => Just(Collective::Allgather),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn every_member_gets_its_result_in_any_interleaving(
        (schedule, kind, size_bytes) in (schedule(), kind(), 0_u64..3000),
        choices in prop::collection::vec(any::<u32>(), 64),
        is_greedy in any::<bool>(),
    ) {
        let mut interpreter = Interpreter::new(&schedule, kind, size_bytes);
        let mut steps = 0;
        let choose = |steps: usize, count: usize| {
            if is_greedy { (choices[0] as usize) % count } else { choices[steps % 64] as usize % count }
        };
        while interpreter.step(|count| choose(steps, count)) {
            steps += 1;
        }
        prop_assert!(interpreter.is_over(), "the streams wait for each other after {steps} steps");
        interpreter.check();
    }

    #[test]
    fn an_allreduce_without_folding_moves_no_byte_too_many(
        members in 2_usize..40, size_bytes in 0_u64..1_000_000,
    ) {
        for schedule in [Schedule::ring(members), Schedule::halving_doubling(1 << members.ilog2())] {
            let members = schedule.members() as u64;
            let programs = Interpreter::new(&schedule, Collective::Allreduce, size_bytes);
            for program in programs.programs() {
                let limit = 2 * (size_bytes * (members - 1)).div_ceil(members) + 2 * 64 * members;
                prop_assert!(program.sent_bytes() <= limit);
            }
        }
    }

    #[test]
    fn the_final_steps_of_an_allreduce_cover_everything_once(schedule in schedule(), size_bytes in 0_u64..10_000) {
        prop_assume!(schedule.members() > 1);
        for index in 0..schedule.members() {
            let program = schedule.program(index, size_bytes);
            let mut ranges: Vec<_> =
                program.finals().iter().map(|step| program.steps()[*step].range().clone()).collect();
            ranges.sort_by_key(|range| range.start);
            let mut end = 0;
            for range in ranges {
                prop_assert_eq!(range.start, end);
                end = range.end;
            }
            prop_assert_eq!(end, size_bytes);
        }
    }

    #[test]
    fn what_a_step_reads_is_all_written_or_all_its_own(schedule in schedule(), size_bytes in 0_u64..10_000) {
        for index in 0..schedule.members() {
            let program = schedule.program(index, size_bytes);
            for (step, range) in program.steps().iter().map(|step| step.range().clone()).enumerate() {
                let writers = program.writers_before(step);
                let unwritten = range.clone().step_by(64).filter(|byte| {
                    !writers.iter().any(|writer| program.steps()[*writer].range().contains(byte))
                });
                prop_assert!(writers.is_empty() || unwritten.count() == 0);
            }
        }
    }
}

#[test]
fn a_large_ring_does_not_wait_for_itself() {
    let mut interpreter = Interpreter::new(&Schedule::ring(40), Collective::Allreduce, 64 * 40);
    while interpreter.step(|count| count - 1) {}
    assert!(interpreter.is_over());
    interpreter.check();
}

#[test]
fn as_many_members_as_there_can_be_get_the_same() {
    for schedule in
        [Schedule::ring(256), Schedule::halving_doubling(256), Schedule::halving_doubling(255)]
    {
        let mut interpreter = Interpreter::new(&schedule, Collective::Allreduce, 64 * 3);
        while interpreter.step(|_| 0) {}
        assert!(interpreter.is_over(), "{schedule}");
        interpreter.check();
    }
}
