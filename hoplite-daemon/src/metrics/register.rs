use prometheus::Registry;
use prometheus::core::Collector;

const VALID: &str = "names and labels of metrics are valid, and each is registered once";

pub(super) fn registered<M: Collector + Clone + 'static>(
    registry: &Registry,
    metric: prometheus::Result<M>,
) -> M {
    let metric = metric.expect(VALID);
    registry.register(Box::new(metric.clone())).expect(VALID);
    metric
}

/// Converts a number to a gauge's value.
pub fn level<N: TryInto<i64>>(number: N) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}
