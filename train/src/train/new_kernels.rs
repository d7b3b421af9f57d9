//! Counts kernels that the loop launches for the first time. Each is a pause, because it must be compiled or read from
//! the cache; the steady state has none.

use kiln_kernels::compilation::kernel_count;

/// Counts new kernels per line of metrics.
#[derive(Debug)]
pub(super) struct NewKernels {
    /// Returns the number of kernels of this process; `None` where nothing is compiled.
    total: fn() -> Option<usize>,
    /// Total at the last line.
    last: usize,
    /// Total at the first line of the loop: the kernels before it are expected.
    first_line: Option<usize>,
}

impl NewKernels {
    /// Starts counting.
    pub(super) fn start() -> Self {
        Self::counting(|| kernel_count().map(|count| count.first_launched()))
    }

    fn counting(total: fn() -> Option<usize>) -> Self {
        Self { total, last: total().unwrap_or(0), first_line: None }
    }

    /// Returns the kernels since the last line.
    pub(super) fn take(&mut self) -> Option<usize> {
        let total = (self.total)()?;
        self.first_line.get_or_insert(total);
        Some(total - std::mem::replace(&mut self.last, total))
    }

    /// Excludes the kernels that `work` launches first: text that is generated at the end of a run has shapes of its
    /// own.
    pub(super) fn without<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let before = (self.total)().unwrap_or(0);
        let done = work();
        let new = (self.total)().unwrap_or(0) - before;
        self.last += new;
        self.first_line = self.first_line.map(|first| first + new);
        done
    }

    /// Returns the kernels since the first line.
    pub(super) fn late(&self) -> Option<usize> {
        Some((self.total)()? - self.first_line?)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static LAUNCHED: Cell<usize> = const { Cell::new(0) };
    }

    fn launch(n: usize) {
        LAUNCHED.set(LAUNCHED.get() + n);
    }

    #[test]
    fn kernels_are_counted_by_line_and_those_of_generated_text_are_not() {
        launch(90);
        let mut kernels = NewKernels::counting(|| Some(LAUNCHED.get()));
        launch(4);
        assert_eq!((kernels.take(), kernels.late()), (Some(4), Some(0)), "the first line has what is left");
        launch(2);
        kernels.without(|| launch(30));
        assert_eq!((kernels.take(), kernels.late()), (Some(2), Some(2)));
        assert_eq!((kernels.take(), kernels.late()), (Some(0), Some(2)));
    }

    #[test]
    fn where_nothing_is_compiled_nothing_is_counted() {
        let mut kernels = NewKernels::counting(|| None);
        assert_eq!((kernels.take(), kernels.late()), (None, None));
        assert_eq!(NewKernels::counting(|| Some(7)).late(), None, "no line yet");
    }
}
