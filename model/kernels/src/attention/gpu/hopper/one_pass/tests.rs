//! The kernels, compiled without a device.

use cubecl::prelude::*;

use super::PassConfig;
use super::column::turns_of_a_head;
use super::gradients::one_pass_gradients;
use super::rows::{one_pass_deltas, one_pass_query_gradient};
use super::sums::SumsCompilationArg;
use crate::attention::gpu::hopper::key_value_gradient::QueryDataCompilationArg;
use crate::attention::gpu::shared::arguments::InputsCompilationArg;
use crate::attention::gpu::shared::config::{FlashConfig, UNITS};
use crate::attention::gpu::tests::call;
use crate::gpu::offline::{Compiled, buffer, settings};

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

    let (launch, properties, target) = settings(3 * UNITS);
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

#[test]
fn turns_are_counted_as_blocks_take_them() {
    let flash = FlashConfig { head_dim: 64, causal: false, window: None, ..super::super::tests::plain() };
    let turns = |flash, lens| turns_of_a_head(&PassConfig { flash }, lens);
    assert_eq!(turns(flash, [1024, 1024]), (8, 64));
    assert_eq!(turns(flash, [100, 300]), (1, 3));
    let causal = FlashConfig { causal: true, ..flash };
    assert_eq!(turns(causal, [1024, 1024]), (8, 36));
    assert_eq!(turns(FlashConfig { head_dim: 128, ..causal }, [256, 256]), (4, 6));
    // A block of 128 keys and a window of 128 reach two tiles of 128 queries, the last block one.
    assert_eq!(turns(FlashConfig { window: Some(128), ..causal }, [1024, 1024]), (2, 15));
}
