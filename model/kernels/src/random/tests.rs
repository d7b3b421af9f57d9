use burn::tensor::Device;

use super::random_words;
use crate::dropout::DropoutStream;
use crate::dropout::philox::philox;
use crate::testing::devices;

fn words(n: usize, stream: &DropoutStream) -> Vec<i32> {
    random_words(n, stream).into_data().convert::<i32>().try_to_vec().expect("converted to i32")
}

#[test]
fn each_element_has_its_philox_block_on_every_device() {
    let (seed, draw) = (0x1234_5678_9abc_def0_u64, 3_u64);
    for (name, device) in devices() {
        let stream = DropoutStream::new(seed, draw, &device);
        for site in 0..2 {
            let found = words(1000, &stream);
            for element in [0_usize, 1, 255, 256, 999] {
                let block = philox([element as u32, site, draw as u32, 0], [seed as u32, (seed >> 32) as u32]);
                let wanted = block.map(|word| (word >> 1).cast_signed());
                let block: Vec<i32> = (0..4).map(|plane| found[plane * 1000 + element]).collect();
                assert_eq!(block, wanted, "element {element} of site {site} on {name}");
            }
        }
    }
}

#[test]
fn words_are_spread_evenly() {
    let found = words(100_000, &DropoutStream::new(5, 0, &Device::flex()));
    let mut counts = [0_u32; 16];
    for word in &found {
        assert!(*word >= 0, "{word} is negative");
        counts[(word >> 27) as usize] += 1;
    }
    // The expected count is 25,000, with a standard deviation of 153.
    assert!(counts.iter().all(|&count| count.abs_diff(25_000) < 800), "{counts:?}");
}
