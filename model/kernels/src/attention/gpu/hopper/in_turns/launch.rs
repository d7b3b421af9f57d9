//! Launches of the kernel.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::attention_in_turns::AttentionInTurns;
use super::{KEYS, TurnsConfig};
use crate::attention::gpu::shared::arguments::InputsCompilationArg;
use crate::attention::gpu::shared::call::Call;
use crate::attention::gpu::shared::config::{FlashConfig, UNITS};
use crate::attention::gpu::shared::program;
use crate::device_queue::programs::Arguments;
use crate::gpu::programs::{add_buffer, add_matrix};

/// Returns the keys that a query sees in the mean from which the kernel is faster than `forward`, see
/// `benches/results/2026-11-30-h200-attention-programs.md`. With heads of 64 and a window of 1,024 it is slower.
fn keys_that_pay(head_dim: usize) -> usize {
    if head_dim == 64 { 2048 } else { 256 }
}

/// Whether the kernel computes this call, and is faster than `forward`.
pub(in crate::attention::gpu::hopper) fn serves(call: &Call) -> bool {
    let FlashConfig { head_dim, dropout, relative, softcap, causal, window, .. } = call.config;
    let computes = matches!(head_dim, 64 | 128) && !dropout && !relative && softcap.is_none();
    #[cfg(test)]
    if let Some(wanted) = crate::attention::tests::long_rows::wanted() {
        return computes && wanted;
    }
    let mean = if causal { call.lens[1] / 2 } else { call.lens[1] };
    let seen = window.map_or(mean, |window| mean.min(window as usize));
    computes && seen >= keys_that_pay(head_dim)
}

/// Computes `out` and `lse`.
pub(in crate::attention::gpu::hopper) fn launch<E: Float + CubeElement>(
    call: &Call,
    out: &CubeTensor,
    lse: &CubeTensor,
) {
    let cfg = TurnsConfig { flash: call.config };
    let (cubes, numbers) = call.places(call.spec.n_heads, call.lens[0].div_ceil(cfg.queries()));
    let mut arguments = Arguments::default();
    add_matrix(&mut arguments, &call.query, cfg.queries());
    add_matrix(&mut arguments, &call.key_value, KEYS);
    program::add_call(&mut arguments, call, numbers);
    add_buffer(&mut arguments, out, out.meta.shape().num_elements() / 8);
    add_buffer(&mut arguments, lse, lse.meta.shape().num_elements());

    let (settings, properties, target) = program::settings(&out.client, (cfg.groups() as u32 + 1) * UNITS);
    let (inputs, buffer) = (InputsCompilationArg { query: (), key_value: () }, program::buffer);
    let numbers = program::call();
    let kernel = AttentionInTurns::<E>::new(settings, properties, target, inputs, numbers, buffer(), buffer(), cfg);
    let written = [out, lse].map(|tensor| tensor.handle.clone().binding());
    // SAFETY: TMA clips to the matrix of keys and values; everything else is guarded by T and S.
    #[expect(unsafe_code, reason = "launching without bounds checks")]
    unsafe {
        arguments.launch(out.device.to_id(), kernel, cubes, written.to_vec());
    }
}
