//! Max-min fair rates by progressive filling: all rates grow equally. When a link is full, its
//! flows keep their rates, and the others grow on.
//!
//! Source: Bertsekas and Gallager, "Data Networks", section 6.5.2.

use std::collections::BTreeMap;

/// Returns each flow's fair rate. A flow lists its distinct links; without links its rate is
/// infinite.
///
/// # Panics
/// If a link does not exist.
pub fn rates(capacities: &[f64], flows: &[Vec<usize>]) -> Vec<f64> {
    let mut rates = vec![f64::INFINITY; flows.len()];
    let mut left = capacities.to_vec();
    let mut users: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (flow, links) in flows.iter().enumerate() {
        for &link in links {
            users.entry(link).or_default().push(flow);
        }
    }
    let mut counts: BTreeMap<usize, usize> =
        users.iter().map(|(&link, flows)| (link, flows.len())).collect();
    loop {
        let shares = counts.iter().filter(|(_, count)| **count > 0);
        let shares = shares.map(|(&link, &count)| (left[link].max(0.0) / count as f64, link));
        let Some((share, full)) = shares.min_by(|a, b| a.0.total_cmp(&b.0)) else { return rates };
        for &flow in &users[&full] {
            if rates[flow].is_finite() {
                continue;
            }
            rates[flow] = share;
            for link in &flows[flow] {
                left[*link] -= share;
                if let Some(count) = counts.get_mut(link) {
                    *count -= 1;
                }
            }
        }
    }
}

/// Returns each flow's end, if all start together with fair rates. A flow over a link of capacity
/// zero never ends; a flow of zero bytes ends at once.
pub fn finish_times(capacities: &[f64], flows: &[Vec<usize>], sizes: &[f64]) -> Vec<f64> {
    let mut ends = vec![f64::INFINITY; flows.len()];
    let mut left = sizes.to_vec();
    let mut active: Vec<usize> = (0..flows.len()).collect();
    let mut now = 0.0;
    while !active.is_empty() {
        let of_active: Vec<Vec<usize>> = active.iter().map(|&flow| flows[flow].clone()).collect();
        let rates = rates(capacities, &of_active);
        let time = |(flow, rate): (&usize, &f64)| {
            if left[*flow] <= 0.0 { 0.0 } else { left[*flow] / rate }
        };
        let times: Vec<f64> = active.iter().zip(&rates).map(time).collect();
        let step = times.iter().copied().fold(f64::INFINITY, f64::min);
        if step.is_infinite() {
            break;
        }
        now += step;
        let mut still = Vec::new();
        for ((&flow, rate), time) in active.iter().zip(&rates).zip(times) {
            // Ends all flows within a rounding error of the earliest, so each step ends at least
            // one.
            if time <= step * (1.0 + 1e-12) {
                ends[flow] = now;
            } else {
                left[flow] -= rate * step;
                still.push(flow);
            }
        }
        active = still;
    }
    ends
}
