//! What NVIDIA's driver says about a card, through its library NVML.

use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};

use super::{Sample, Source};

/// Opens NVML for the card at `address`; `None` without the library or the card.
pub(super) fn open(address: &str) -> Option<Source> {
    let nvml = Nvml::init().ok()?;
    nvml.device_by_pci_bus_id(address).ok()?;
    let address = address.to_owned();
    Some(Box::new(move || {
        let device = nvml.device_by_pci_bus_id(address.as_str()).ok()?;
        let watts = |milliwatts: u32| f64::from(milliwatts) / 1e3;
        let slowed = ThrottleReasons::SW_POWER_CAP
            | ThrottleReasons::HW_SLOWDOWN
            | ThrottleReasons::SW_THERMAL_SLOWDOWN
            | ThrottleReasons::HW_THERMAL_SLOWDOWN
            | ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN;
        Some(Sample {
            busy_share: device.utilization_rates().ok().map(|rates| f64::from(rates.gpu) / 100.0),
            power_w: device.power_usage().ok().map(watts),
            power_limit_w: device.enforced_power_limit().ok().map(watts),
            sm_clock_mhz: device.clock_info(Clock::SM).ok().map(f64::from),
            max_sm_clock_mhz: device.max_clock_info(Clock::SM).ok().map(f64::from),
            temperature_c: device.temperature(TemperatureSensor::Gpu).ok().map(f64::from),
            throttled: device.current_throttle_reasons().ok().map(|why| f64::from(u8::from(why.intersects(slowed)))),
        })
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_card_is_no_source() {
        // Whether there is a driver or not.
        assert!(open("ffff:ff:1f.7").is_none());
    }
}
