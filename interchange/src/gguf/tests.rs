use super::GgufType;

#[test]
fn blocks_have_a_factor_and_signed_bytes() {
    let mut values = [0.0_f32; 64];
    (values[0], values[1], values[2]) = (-2.0, 1.0, 0.1);
    let bytes = GgufType::Q8_0.bytes(&values);
    assert_eq!(bytes.len(), 2 * 34);
    let factor = half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
    assert!((factor - 2.0 / 127.0).abs() < 1e-5, "{factor}");
    assert_eq!([bytes[2] as i8, bytes[3] as i8, bytes[4] as i8, bytes[5] as i8], [-127, 64, 6, 0]);
    assert!(bytes[34..].iter().all(|byte| *byte == 0), "a block of zeros");
}
