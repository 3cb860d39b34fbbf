//! Progress bars, on standard error, for people.

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// What is smaller is done before anybody can look.
const SHOWN_FROM_BYTES: u64 = 32 << 20;

/// The bar of a transfer of `size_bytes`. Not shown if that is little, or if standard error is not a terminal.
pub(crate) fn of_transfer(label: &str, size_bytes: u64) -> ProgressBar {
    if size_bytes < SHOWN_FROM_BYTES {
        return ProgressBar::hidden();
    }
    styled(ProgressBar::new(size_bytes), label)
}

/// The bar of something that is done in steps, whose number is not known yet.
pub(crate) fn of_steps(label: &str) -> ProgressBar {
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{prefix:<8} {wide_bar} {percent:>3}% {eta:>4}");
    bar.set_style(style.expect("the template is a valid constant"));
    bar.set_prefix(label.to_owned());
    bar
}

/// A bar below those that `bars` shows already.
pub(crate) fn among(bars: &MultiProgress, label: &str, size_bytes: u64) -> ProgressBar {
    styled(bars.add(ProgressBar::new(size_bytes)), label)
}

fn styled(bar: ProgressBar, label: &str) -> ProgressBar {
    const TEMPLATE: &str = "{prefix:<8} {wide_bar} {binary_bytes:>11} of {binary_total_bytes} {binary_bytes_per_sec:>13} {eta:>4}";
    let style = ProgressStyle::with_template(TEMPLATE).expect("the template is a valid constant");
    bar.set_style(style);
    bar.set_prefix(label.to_owned());
    bar
}
