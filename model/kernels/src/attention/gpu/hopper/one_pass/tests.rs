//! The kernels, compiled without a device.

use std::sync::atomic::{AtomicUsize, Ordering};

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

static WANTED: AtomicUsize = AtomicUsize::new(0);

/// While it lives, all calls that the pass computes take it.
pub(crate) struct Wanted(());

impl Wanted {
    pub(crate) fn new() -> Self {
        WANTED.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Wanted {
    fn drop(&mut self) {
        WANTED.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(super) fn is_wanted() -> bool {
    WANTED.load(Ordering::Relaxed) > 0
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
