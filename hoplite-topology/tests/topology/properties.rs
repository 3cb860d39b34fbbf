use hoplite_core::topology::Links;
use hoplite_core::topology::random::Random;
use hoplite_topology::Model;
use hoplite_topology::cost::{Evaluator, cost};
use hoplite_topology::solve::{Search, WHOLE};
use proptest::prelude::*;

use crate::made;

fn models(nodes: usize) -> Vec<Model> {
    let mut models = vec![
        Model::Ring,
        Model::DoubleBinaryTree,
        Model::NcclTree,
        Model::Chain,
        Model::BCube(nodes.max(2) as u32),
    ];
    models.extend(nodes.is_power_of_two().then_some(Model::HalvingDoubling));
    models.extend(nodes.is_multiple_of(3).then(|| Model::Hierarchical(vec![3, nodes as u32 / 3])));
    models
        .extend(nodes.is_multiple_of(4).then(|| Model::Hierarchical(vec![nodes as u32 / 4, 2, 2])));
    models.extend([3, 4, 5].map(Model::BCube));
    models
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn delta_evaluation_equals_full_evaluation(nodes in 1_usize..34, seed: u64, size_bytes in 0_u64..1 << 30) {
        let matrix = made::random_matrix(nodes, seed);
        let links = Links::new(&matrix, size_bytes).unwrap();
        let mut random = Random::new(seed);
        for model in models(nodes) {
            let Ok(mut evaluator) = Evaluator::new(links, &model, &made::shuffled(nodes, seed)) else { continue };
            let mut kept = (evaluator.order().to_vec(), evaluator.energy());
            for _ in 0..30 {
                match random.below(4) {
                    0 => {
                        let (a, b) = (random.index(nodes + 1), random.index(nodes + 1));
                        evaluator.reverse(a.min(b), a.max(b));
                    }
                    1 if nodes >= 4 => {
                        let half = random.index(nodes / 2);
                        evaluator.swap_blocks(0, half.max(nodes / 4), half.min(nodes / 4));
                    }
                    _ => evaluator.swap(random.index(nodes), random.index(nodes)),
                }
                let fresh = Evaluator::new(links, &model, evaluator.order()).unwrap();
                prop_assert_eq!(evaluator.cost(), fresh.cost(), "{}", &model);
                prop_assert_eq!(evaluator.energy(), fresh.energy(), "{}", &model);
                if random.below(3) == 0 {
                    evaluator.undo();
                    prop_assert_eq!(evaluator.order(), &kept.0);
                    prop_assert_eq!(evaluator.energy(), kept.1);
                } else if random.below(2) == 0 {
                    evaluator.commit();
                    kept = (evaluator.order().to_vec(), evaluator.energy());
                }
            }
        }
    }

    #[test]
    fn searches_give_permutations_and_bounds_below_all_costs(nodes in 1_usize..40, seed: u64, size_bytes in 0_u64..1 << 24) {
        let matrix = made::random_matrix(nodes, seed);
        let links = Links::new(&matrix, size_bytes).unwrap();
        for model in models(nodes) {
            if nodes == 8 || matches!(model, Model::Ring | Model::Chain) && (10..=16).contains(&nodes) {
                continue; // Exact results are tested against the reference.
            }
            let Ok(mut search) = Search::new(links, &model, seed) else { continue };
            let before = cost(links, &model, &(0..nodes as u32).collect::<Vec<_>>()).unwrap();
            for call in 0..20 {
                search.advance(20, call * (WHOLE / 20));
                prop_assert_eq!(cost(links, &model, search.best()), Ok(search.best_cost()), "{}", &model);
                prop_assert!(search.best_cost() <= before);
                prop_assert!(search.lower_bound() <= search.best_cost());
            }
            let other = cost(links, &model, &made::shuffled(nodes, seed)).unwrap();
            prop_assert!(search.lower_bound() <= other, "{}", &model);
        }
    }

    #[test]
    fn the_bound_of_small_cases_is_the_optimum(nodes in 2_usize..8, seed: u64, size_bytes in 0_u64..1 << 20) {
        let matrix = made::random_matrix(nodes, seed);
        let links = Links::new(&matrix, size_bytes).unwrap();
        for model in models(nodes) {
            let Ok(search) = Search::new(links, &model, seed) else { continue };
            prop_assert_eq!(search.best_cost(), search.lower_bound());
            for other in 0..20 {
                let other = cost(links, &model, &made::shuffled(nodes, seed ^ other)).unwrap();
                prop_assert!(search.best_cost() <= other, "{}", &model);
            }
        }
    }
}

#[test]
fn a_search_can_be_repeated() {
    let matrix = made::random_matrix(48, 9);
    let links = Links::new(&matrix, 1 << 20).unwrap();
    let find = |model: &Model, seed| {
        let mut search = Search::new(links, model, seed).unwrap();
        for call in 0..40 {
            search.advance(50, call * (WHOLE / 40));
        }
        search.best().to_vec()
    };
    for model in [Model::Ring, Model::Chain, Model::DoubleBinaryTree] {
        assert_eq!(find(&model, 3), find(&model, 3));
    }
}
