use std::io::{self, Write};
use std::sync::LazyLock;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

const SHOWN_FROM_BYTES: u64 = 32 << 20;

const TICK: Duration = Duration::from_millis(100);

static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

pub(crate) fn note(line: &str) {
    BARS.suspend(|| {
        let _ = writeln!(io::stderr(), "{line}");
    });
}

/// Shows the elapsed time on a terminal until dropped.
#[derive(Debug)]
pub(crate) struct Waiting(ProgressBar);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

pub(crate) fn of_wait(label: &str) -> Waiting {
    let bar = BARS.add(ProgressBar::new_spinner());
    let style = ProgressStyle::with_template("{prefix:<8} {spinner} {elapsed}");
    bar.set_style(style.expect("the template is a valid constant"));
    bar.set_prefix(label.to_owned());
    bar.enable_steady_tick(TICK);
    Waiting(bar)
}

/// Returns a bar, hidden if the transfer is small or standard error is no terminal.
pub(crate) fn of_transfer(label: &str, size_bytes: u64) -> ProgressBar {
    if size_bytes < SHOWN_FROM_BYTES {
        return ProgressBar::hidden();
    }
    styled(BARS.add(ProgressBar::new(size_bytes)), label)
}

pub(crate) fn of_steps(label: &str) -> ProgressBar {
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{prefix:<8} {wide_bar} {percent:>3}% {eta:>4}");
    bar.set_style(style.expect("the template is a valid constant"));
    bar.set_prefix(label.to_owned());
    bar
}

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
