//! How long the kernels take: run with `KILN_TIMES`.

use burn::backend::Dispatch;
use burn::tensor::{DType, Tensor};

use crate::activation::Activation;
use crate::dropout::{DropoutStream, Mask};
use crate::linear::{Layout, LinearOps, ProductKind, linear_weight_gradient_accumulate};
use crate::maybe::Maybe;
use crate::settings::Settings;
use crate::testing::{seconds, tensor, time, timing_device, values};

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

/// Products of layers of a billion parameters in bf16 and in FP8, with the rounding of operands: `KILN_TIMES=fp8`. A product of 16
/// columns is little but the rounding of its left operand.
#[test]
fn times_of_fp8() {
    let Some(device) = timing_device() else { return };
    let m = 16_384;
    // Random numbers: multiplying equal ones takes less power, and so less time.
    let matrix = |m: usize, n: usize| {
        let part: Tensor<2> = tensor(&values(1024 * n, 7), [1024, n], DType::BF16, &device);
        part.repeat_dim(0, m.div_ceil(1024)).narrow(0, 0, m).into_dispatch()
    };
    for (k, n) in [(2048, 2560), (2048, 2048), (2048, 11_264), (5632, 2048), (1536, 8960), (2048, 16), (5632, 16)] {
        let (x, w, dy) = (matrix(m, k), matrix(k, n), matrix(m, n));

        let milliseconds = |fp8_products: bool| {
            let forward = {
                let _chosen = Settings { fp8_products, ..Settings::current() }.install();
                ProductKind::new(Layout::NN)
            };
            let y = seconds(&device, || Dispatch::product(x.clone(), w.clone(), forward));
            let both = seconds(&device, || Dispatch::product_gradients(dy.clone(), x.clone(), w.clone(), forward));
            let dw = seconds(&device, || Dispatch::product(x.clone(), dy.clone(), forward.of_weight_gradient()));
            [y, dw, both].map(|secs| 1e3 * secs)
        };

        let [bf16, fp8] = [false, true].map(milliseconds);
        println!(
            "{m} x {k} x {n}: forward {:.3} ms in bf16, {:.3} in FP8; weight gradient {:.3}, {:.3}; both gradients {:.3}, {:.3}",
            bf16[0], fp8[0], bf16[1], fp8[1], bf16[2], fp8[2]
        );
    }
}
