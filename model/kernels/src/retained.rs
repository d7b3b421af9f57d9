//! Results that a first forward keeps, so that the forward that backward runs again need not compute them.
//!
//! Selective activation checkpointing keeps what is expensive to compute: products and attention. Norms, activations and rotations
//! are computed again.

use std::cell::RefCell;
use std::vec::IntoIter;

use burn::backend::DispatchTensor;

thread_local! {
    static CURRENT: RefCell<Mode> = const { RefCell::new(Mode::Off) };
}

enum Mode {
    Off,
    Keep(Vec<DispatchTensor>),
    Reuse(IntoIter<DispatchTensor>),
}

/// Results of products and attention, in the order of their computation.
#[derive(Debug)]
pub struct Retained(Vec<DispatchTensor>);

impl Retained {
    /// Runs `forward` on tensors without autodiff and keeps the results of its products and attention.
    pub fn keep<T>(forward: impl FnOnce() -> T) -> (T, Self) {
        let installed = Installed::new(Mode::Keep(Vec::new()));
        let result = forward();
        let Mode::Keep(kept) = installed.end() else { unreachable!("modes nest") };
        (result, Self(kept))
    }

    /// Runs the same `forward` on tensors with autodiff and takes the kept results instead of computing them.
    ///
    /// # Panics
    /// If `forward` computes another number of results.
    pub fn reuse<T>(self, forward: impl FnOnce() -> T) -> T {
        let installed = Installed::new(Mode::Reuse(self.0.into_iter()));
        let result = forward();
        let Mode::Reuse(rest) = installed.end() else { unreachable!("modes nest") };
        assert!(rest.len() == 0, "the second forward left {} results", rest.len());
        result
    }
}

/// Returns whether this forward keeps its results.
pub(crate) fn is_kept() -> bool {
    CURRENT.with_borrow(|mode| matches!(mode, Mode::Keep(_)))
}

/// Keeps the results of an operator, if this forward does.
pub(crate) fn keep<const N: usize>(results: [&DispatchTensor; N]) {
    CURRENT.with_borrow_mut(|mode| {
        if let Mode::Keep(kept) = mode {
            kept.extend(results.into_iter().cloned());
        }
    });
}

/// Returns the kept results of the next operator, if this is the second forward.
pub(crate) fn reused<const N: usize>() -> Option<[DispatchTensor; N]> {
    CURRENT.with_borrow_mut(|mode| match mode {
        Mode::Reuse(kept) => Some(std::array::from_fn(|_| kept.next().expect("as many results as before"))),
        _ => None,
    })
}

/// A mode of this thread, until it ends or is dropped.
struct Installed {
    previous: Mode,
}

impl Installed {
    fn new(mode: Mode) -> Self {
        Self { previous: CURRENT.replace(mode) }
    }

    /// Returns the mode as it is now.
    fn end(mut self) -> Mode {
        CURRENT.replace(std::mem::replace(&mut self.previous, Mode::Off))
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        CURRENT.set(std::mem::replace(&mut self.previous, Mode::Off));
    }
}
