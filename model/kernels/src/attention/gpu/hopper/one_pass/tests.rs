//! The kernels, compiled without a device.

use std::sync::atomic::{AtomicU8, Ordering};

use cubecl::prelude::*;

use super::PassConfig;
use super::gradients::one_pass_gradients;
use super::rows::{one_pass_deltas, one_pass_query_gradient};
use super::sums::SumsCompilationArg;
use crate::attention::gpu::hopper::key_value_gradient::QueryDataCompilationArg;
use crate::attention::gpu::shared::arguments::InputsCompilationArg;
use crate::attention::gpu::shared::config::{FlashConfig, UNITS};
use crate::attention::gpu::tests::call;
use crate::gpu::offline::{Compiled, buffer, settings};

/// Whether calls take the pass that it computes: 0 if they decide themselves, 1 for all of them, 2 for none.
static WANTED: AtomicU8 = AtomicU8::new(0);

/// While it lives, calls do not decide themselves. Only for tests that have the device alone.
pub(crate) struct Wanted(());

/// Sends all calls through the pass that it computes, or none.
pub(crate) fn want(all: bool) -> Wanted {
    WANTED.store(if all { 1 } else { 2 }, Ordering::Relaxed);
    Wanted(())
}

impl Drop for Wanted {
    fn drop(&mut self) {
        WANTED.store(0, Ordering::Relaxed);
    }
}

pub(super) fn wanted() -> Option<bool> {
    match WANTED.load(Ordering::Relaxed) {
        0 => None,
        wanted => Some(wanted == 1),
    }
}

/// Compiles the three kernels of the pass.
pub(in crate::attention::gpu::hopper) fn kernels<E: Float>(case: &str, flash: FlashConfig) -> [Compiled; 3] {
    let cfg = PassConfig { flash };
    let (launch, properties, target) = settings(UNITS);
    #[rustfmt::skip]
    let first = one_pass_deltas::OnePassDeltas::<E>::new(
        launch, properties, target, buffer(), buffer(), (), (), buffer(), buffer(), cfg,
    );
    let (launch, properties, target) = settings(2 * UNITS);
    #[rustfmt::skip]
    let third = one_pass_query_gradient::OnePassQueryGradient::<E>::new(
        launch, properties, target, buffer(), buffer(), (), buffer(), cfg,
    );
    let (launch, properties, target) = settings(2 * UNITS);
    let inputs = InputsCompilationArg { query: (), key_value: () };
    let data = QueryDataCompilationArg { d_out: (), lse: buffer(), delta: buffer() };
    let sums = SumsCompilationArg { numbers: buffer(), locks: buffer() };
    #[rustfmt::skip]
    let second = one_pass_gradients::OnePassGradients::<E>::new(
        launch, properties, target, inputs, data, call(), sums, buffer(), cfg,
    );
    [
        Compiled::new(format!("attention/one-pass-deltas/{case}"), first),
        Compiled::new(format!("attention/one-pass-gradients/{case}"), second),
        Compiled::new(format!("attention/one-pass-query-gradient/{case}"), third),
    ]
}
