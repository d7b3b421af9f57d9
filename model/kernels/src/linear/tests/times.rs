//! How long the kernels take: run with `KILN_TIMES`.

use burn::backend::Dispatch;
use burn::tensor::{DType, Tensor};

use crate::activation::Activation;
use crate::dropout::{DropoutStream, Mask};
use crate::linear::{Layout, LinearOps, ProductKind, linear_weight_gradient_accumulate};
use crate::maybe::Maybe;
use crate::testing::{seconds, time, timing_device};

/// The linear layers of GPT-2 124M at 16 x 1024.
#[test]
fn times() {
    let Some(device) = timing_device() else { return };
    let (m, nn) = (16_384, ProductKind::new(Layout::NN));
    let matrix = |m, n| (Tensor::<2>::ones([m, n], (&device, DType::BF16)) * 1e-2).into_dispatch();
    for (k, n) in [(768, 2304), (768, 768), (768, 3072), (3072, 768), (512, 2048), (2048, 512), (2048, 576), (576, 576)]
    {
        let (x, weight) = (matrix(m, k), matrix(k, n));
        let bias = Maybe::Some(Tensor::<1>::ones([n], (&device, DType::BF16)).into_dispatch());
        let epilogue_bias = bias.clone();
        let bytes = 2 * (m * k + k * n + m * n);

        for (what, bias, activation) in [
            ("product", Maybe::None, None),
            ("product + bias", bias.clone(), None),
            ("relu(product + bias)", bias, Some(Activation::Relu)),
        ] {
            time(&format!("{what} {m} x {k} x {n}, {:.0} GFLOP", 2e-9 * (m * k * n) as f64), bytes, &device, || {
                Dispatch::fused_linear(x.clone(), weight.clone(), bias.clone(), nn, activation, Mask::None)
            });
        }

        let residual = matrix(m, n);
        time(&format!("residual + product + bias {m} x {k} x {n}"), bytes + 2 * m * n, &device, || {
            let (x, weight, bias) = (x.clone(), weight.clone(), epilogue_bias.clone());
            Dispatch::linear_residual(x, weight, bias, residual.clone(), nn)
        });
        time(&format!("gelu_tanh(product + bias), both kept, {m} x {k} x {n}"), bytes + 2 * m * n, &device, || {
            let (x, weight, bias) = (x.clone(), weight.clone(), epilogue_bias.clone());
            Dispatch::fused_linear_both(x, weight, bias, nn, Activation::GeluTanh, Mask::None)
        });
        let stream = DropoutStream::new(5, 6, &device);
        time(&format!("dropout(relu(product + bias)) {m} x {k} x {n}"), bytes, &device, || {
            let (x, weight, bias) = (x.clone(), weight.clone(), epilogue_bias.clone());
            let mask = Mask::take(Some((0.1, &stream)), m * n);
            Dispatch::fused_linear(x, weight, bias, nn, Some(Activation::Relu), mask)
        });

        let dy = matrix(m, n);
        time(
            &format!("weight gradient {m} x {k} x {n}, {:.0} GFLOP", 2e-9 * (m * k * n) as f64),
            bytes,
            &device,
            || Dispatch::product(x.clone(), dy.clone(), nn.with(Layout::TN)),
        );
        let (x, dy): (Tensor<2>, Tensor<2>) = (Tensor::from_dispatch(x), Tensor::from_dispatch(dy.clone()));
        let mut sum = Some(Tensor::<2>::zeros([k, n], (&device, DType::F32)));
        time(&format!("weight gradient accumulated in f32 {m} x {k} x {n}"), bytes + 6 * k * n, &device, || {
            sum = sum.take().map(|sum| linear_weight_gradient_accumulate(x.clone(), dy.clone(), sum));
        });
        let dy = dy.into_dispatch();
        time(&format!("bias gradient {m} x {n}"), 2 * m * n, &device, || Dispatch::column_sum(dy.clone()));
    }

    for n in [2048, 3072] {
        let (x, dy) = (matrix(m, n), matrix(m, n));
        for (activation, p) in
            [(Activation::Relu, 0.0), (Activation::Relu, 0.1), (Activation::Gelu, 0.1), (Activation::GeluTanh, 0.0)]
        {
            let stream = DropoutStream::new(5, 6, &device);
            let mask = || Mask::take(Some((p, &stream)), m * n);
            time(&format!("{activation:?}, dropout {p}, {m} x {n}"), 4 * m * n, &device, || {
                Dispatch::activate(x.clone(), activation, mask())
            });
            time(&format!("its backward with the bias {m} x {n}"), 6 * m * n, &device, || {
                Dispatch::activate_backward(x.clone(), dy.clone(), activation, mask())
            });
        }
    }
}

/// The rates of products in the three layouts of training: `KILN_TIMES=TFLOP/s`.
#[test]
fn rates() {
    let Some(device) = timing_device() else { return };
    let matrix = |m, n| (Tensor::<2>::ones([m, n], (&device, DType::BF16)) * 1e-2).into_dispatch();
    let shapes = [
        (8192usize, 8192, 8192),
        (16_384, 768, 2304),
        (16_384, 768, 768),
        (16_384, 768, 3072),
        (16_384, 3072, 768),
        (16_384, 768, 50_304),
    ];
    for (m, k, n) in shapes {
        for layout in [Layout::NN, Layout::NT, Layout::TN] {
            let (a, b) = match layout {
                Layout::NN => (matrix(m, k), matrix(k, n)),
                Layout::NT => (matrix(m, n), matrix(k, n)),
                Layout::TN => (matrix(m, k), matrix(m, n)),
            };
            let secs = seconds(&device, || Dispatch::product(a.clone(), b.clone(), ProductKind::new(layout)));
            let rate = 2e-12 * (m * k * n) as f64 / secs;
            println!("{layout:?} of a layer of {m} x {k} x {n}: {:.4} ms, {rate:.0} TFLOP/s", 1e3 * secs);
        }
    }
}
