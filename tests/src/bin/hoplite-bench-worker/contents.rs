use anyhow::ensure;

/// Distance of the checked elements: a prime, to meet all parts of blocks.
const STRIDE: usize = 61;

/// Returns a rank's factor: a small whole number, so that sums over all ranks are exact.
pub(crate) fn factor(rank: usize, round: usize) -> f32 {
    ((rank + round) % 16 + 1) as f32
}

fn element(factor: f32, index: usize) -> f32 {
    factor * (index % 8 + 1) as f32
}

pub(crate) fn contents(factor: f32, elements: usize) -> Vec<u8> {
    (0..elements).flat_map(|index| element(factor, index).to_le_bytes()).collect()
}

pub(crate) fn compare(bytes: &[u8], factor: f32, elements: usize) -> anyhow::Result<()> {
    let (found, rest) = bytes.as_chunks::<4>();
    ensure!(
        found.len() == elements && rest.is_empty(),
        "{} bytes instead of {elements} elements",
        bytes.len()
    );
    for index in (0..elements).step_by(STRIDE).chain(elements.checked_sub(1)) {
        let (found, expected) = (f32::from_le_bytes(found[index]), element(factor, index));
        ensure!(found == expected, "element {index} is {found} instead of {expected}");
    }
    Ok(())
}
