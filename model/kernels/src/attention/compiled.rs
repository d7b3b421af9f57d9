//! The kernels, compiled without a device.

use cubecl::prelude::*;
use half::{bf16, f16};

use super::kernel::backward::{key_value_gradient, query_gradient};
use super::kernel::forward::forward;
use super::kernel::one_tile::one_tile_gradients;
use super::kernel::{FlashConfig, UNITS};
use crate::gpu::offline::{buffer, ptx, settings};

/// Forward, the queries' gradient, that of keys and values, and all three of one tile; `None` where they cannot be compiled on
/// this machine.
pub(super) fn kernels<E: Float>(cfg: FlashConfig) -> [Option<String>; 4] {
    let (launch, properties, target) = settings(UNITS);
    #[rustfmt::skip]
    let first = ptx(forward::Forward::<E>::new(
        launch, properties, target, (), (), buffer(), buffer(), buffer(), buffer(), buffer(), (), (), (), (), (), (), (), (), cfg,
    ));
    let (launch, properties, target) = settings(UNITS);
    #[rustfmt::skip]
    let second = ptx(query_gradient::QueryGradient::<E>::new(
        launch, properties, target, (), (), buffer(), buffer(), (), buffer(), buffer(), buffer(), buffer(), buffer(), buffer(),
        (), (), (), (), (), (), (), (), cfg,
    ));
    let (launch, properties, target) = settings(UNITS);
    #[rustfmt::skip]
    let third = ptx(key_value_gradient::KeyValueGradient::<E>::new(
        launch, properties, target, (), (), (), buffer(), buffer(), buffer(), buffer(), buffer(), buffer(), (), (), (),
        (), (), (), (), (), cfg,
    ));
    let (launch, properties, target) = settings(UNITS);
    #[rustfmt::skip]
    let fourth = ptx(one_tile_gradients::OneTileGradients::<E>::new(
        launch, properties, target, (), (), buffer(), buffer(), (), buffer(), buffer(), buffer(), buffer(), buffer(), buffer(),
        (), (), (), (), (), cfg,
    ));
    [first, second, third, fourth]
}

#[test]
fn kernels_compile_without_a_device() {
    let plain = FlashConfig {
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 64,
        packed: true,
        causal: true,
        lengths: false,
        documents: false,
        dropout: false,
    };
    let masked = FlashConfig { lengths: true, documents: true, dropout: true, ..plain };
    let padded = FlashConfig { n_kv_heads: 4, causal: false, documents: false, ..masked };
    let wide = FlashConfig { head_dim: 128, packed: false, causal: false, ..plain };
    let texts = FlashConfig { documents: true, ..plain };
    let both = [kernels::<bf16>, kernels::<f16>];
    for config in [plain, texts, masked, padded, wide] {
        for (compile, operands) in both.iter().zip(["f32.bf16.bf16", "f32.f16.f16"]) {
            for code in compile(config).iter().flatten() {
                assert!(code.contains(operands), "{config:?}");
                assert!(code.contains("cp.async.bulk.tensor"), "{config:?}");
                // A division in full precision is a call, and around a call the driver runs one product at a time.
                assert!(!["div.", "rcp.rn", "call"].iter().any(|slow| code.contains(slow)), "{config:?}");
            }
        }
    }
}
