//! Profiles: disks described in TOML, those that are shipped, and models made of them.

use crate::model::bins::{self, Bins, BinsModel};
use crate::model::linear::{Linear, LinearModel};
use crate::model::mechanical::{Mechanical, MechanicalModel};
use crate::model::network::{Network, NetworkModel};
use crate::model::ssd::{Affine, Ssd, SsdModel};
use crate::model::{Model, spread::Spread};
use crate::{CacheShape, SECTOR};
use block::{ByteSize, Error, Result};
use serde::{Deserialize, Serialize};

/// The longest text of a profile, in bytes.
pub const LONGEST: usize = 4 << 20;

/// A disk, described.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// What it is called.
    pub name: String,
    /// What it is, in a sentence.
    #[serde(default)]
    pub about: String,
    /// Where the numbers come from.
    #[serde(default)]
    pub source: String,
    /// Its size, such as `73.4G` or `143374744s` for sectors.
    pub size: String,
    /// The cache on board.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheShape>,
    /// One of the five models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub linear: Option<Linear>,
    /// See [`linear`](Self::linear).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bins: Option<Bins>,
    /// See [`linear`](Self::linear).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mechanical: Option<Mechanical>,
    /// See [`linear`](Self::linear).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssd: Option<Ssd>,
    /// See [`linear`](Self::linear).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
}

/// The profiles that are shipped.
const SHIPPED: [&str; 6] = [
    include_str!("../profiles/cheetah-15k4.toml"),
    include_str!("../profiles/cheetah-15k4-mechanical.toml"),
    include_str!("../profiles/hdd-7200.toml"),
    include_str!("../profiles/ssd-sata.toml"),
    include_str!("../profiles/ssd-nvme.toml"),
    include_str!("../profiles/network-1g.toml"),
];

/// The profiles that are shipped.
///
/// # Errors
/// None, unless the program was built wrong.
pub fn shipped() -> Result<Vec<Profile>> {
    SHIPPED.iter().map(|text| Profile::parse(text, "a shipped profile")).collect()
}

/// A number between bounds, or what is wrong with it.
fn within(what: &str, value: f64, least: f64, most: f64) -> Result<()> {
    match value.is_finite() && (least..=most).contains(&value) {
        true => Ok(()),
        false => Err(Error::invalid(format!("{what} is {value}; give {least} to {most}"))),
    }
}

/// A distribution between bounds.
fn spread(what: &str, spread: &Spread, least: f64, most: f64) -> Result<()> {
    spread.fault(least, most).map_or(Ok(()), |fault| Err(Error::invalid(format!("{what} {fault}"))))
}

/// The longest time of one access, in milliseconds.
const SLOWEST: f64 = 100_000.0;

impl Profile {
    /// Reads a profile; `from` names it in messages.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid): which value is wrong and what it may be.
    pub fn parse(text: &str, from: &str) -> Result<Self> {
        if text.len() > LONGEST {
            let most = ByteSize(LONGEST as u64);
            return Err(Error::invalid(format!("{from}: longer than {most}; that is no profile")));
        }
        let profile: Self = toml::from_str(text).map_err(|e| {
            let line = e.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
            Error::invalid(format!("{from}, line {line}: {}", e.message().replace('\n', " ")))
        })?;
        profile.check().map_err(|e| e.context(from))?;
        Ok(profile)
    }

    /// The shipped profile of this name.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound), with the names that there are.
    pub fn named(name: &str) -> Result<Self> {
        let all = shipped()?;
        let names: Vec<_> = all.iter().map(|p| p.name.clone()).collect();
        all.into_iter().find(|p| p.name == name).ok_or_else(|| {
            Error::not_found(format!(
                "{name:?} is no profile that is shipped; there are {}, or give a file",
                names.join(", ")
            ))
        })
    }

    /// Writes it as TOML.
    ///
    /// # Errors
    /// [`Internal`](block::ErrorKind::Internal) when it cannot be written so.
    pub fn to_toml(&self) -> Result<String> {
        toml::to_string(self)
            .map_err(|e| Error::internal("cannot write the profile as TOML").with_source(e))
    }

    /// How many sectors it has.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when the size is no size.
    pub fn sectors(&self) -> Result<u64> {
        let sectors = match self.size.strip_suffix('s').and_then(|n| n.parse::<u64>().ok()) {
            Some(sectors) => sectors,
            None => self.size.parse::<ByteSize>().map_err(|e| e.context("size"))?.0 / SECTOR,
        };
        match (2048..=1 << 50).contains(&sectors) {
            true => Ok(sectors),
            false => Err(Error::invalid(format!("size is {}; give 1M to 512P", self.size))),
        }
    }

    /// Which model it has.
    pub fn kind(&self) -> &'static str {
        match self {
            Self { linear: Some(_), .. } => "linear",
            Self { bins: Some(_), .. } => "bins",
            Self { mechanical: Some(_), .. } => "mechanical",
            Self { ssd: Some(_), .. } => "ssd",
            _ => "network",
        }
    }

    /// Whether it rotates: whether the order of requests matters.
    pub fn rotates(&self) -> bool {
        matches!(self.kind(), "linear" | "bins" | "mechanical")
    }

    /// The model that it describes.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) as [`parse`](Self::parse).
    pub fn model(&self) -> Result<Box<dyn Model>> {
        self.check().map_err(|e| e.context(&self.name))?;
        let (sectors, cache) = (self.sectors()?, self.cache.unwrap_or_default());
        Ok(match self {
            Self { linear: Some(p), .. } => Box::new(LinearModel::new(p.clone(), sectors, cache)),
            Self { bins: Some(p), .. } => Box::new(BinsModel::new(p.clone(), sectors, cache)),
            Self { mechanical: Some(p), .. } => {
                Box::new(MechanicalModel::new(p.clone(), sectors, cache))
            }
            Self { ssd: Some(p), .. } => Box::new(SsdModel::new(p.clone(), sectors)),
            Self { network: Some(p), .. } => Box::new(NetworkModel::new(*p, sectors)),
            _ => return Err(Error::invalid("no model")),
        })
    }

    /// The model as whoever sends the disk requests can know it: where the head is, and not where the platter is in
    /// its turn.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) as [`parse`](Self::parse).
    pub fn seen_from_outside(&self) -> Result<Box<dyn Model>> {
        let Some(parameters) = &self.mechanical else { return self.model() };
        self.check().map_err(|e| e.context(&self.name))?;
        let (sectors, cache) = (self.sectors()?, self.cache.unwrap_or_default());
        Ok(Box::new(MechanicalModel::new(parameters.clone(), sectors, cache).seen_from_outside()))
    }

    fn check(&self) -> Result<()> {
        let sectors = self.sectors()?;
        let given = [
            self.linear.is_some(),
            self.bins.is_some(),
            self.mechanical.is_some(),
            self.ssd.is_some(),
            self.network.is_some(),
        ];
        if given.iter().filter(|g| **g).count() != 1 {
            return Err(Error::invalid(
                "a profile has exactly one of the sections linear, bins, mechanical, ssd, network",
            ));
        }
        if let Some(cache) = &self.cache {
            within("cache.segments", f64::from(cache.segments), 0.0, 4096.0)?;
            if !self.rotates() {
                return Err(Error::invalid(
                    "the section cache is for rotating disks; leave it out",
                ));
            }
        }
        self.linear.iter().try_for_each(check_linear)?;
        self.bins.iter().try_for_each(check_bins)?;
        self.mechanical.iter().try_for_each(|m| check_mechanical(m, sectors))?;
        self.ssd.iter().try_for_each(check_ssd)?;
        self.network.iter().try_for_each(check_network)
    }
}

fn check_linear(p: &Linear) -> Result<()> {
    within("linear.base_ms", p.base_ms, 0.0, SLOWEST)?;
    within("linear.seek_ms", p.seek_ms, 0.0, SLOWEST)?;
    within("linear.sector_us", p.sector_us, 0.0, 1e6)?;
    within("linear.write_sector_us", p.write_sector_us.unwrap_or(0.0), 0.0, 1e6)?;
    within("linear.sequential_ms", p.sequential_ms.unwrap_or(0.0), 0.0, SLOWEST)?;
    spread("linear.hit_ms", &p.hit_ms, 0.0, SLOWEST)
}

fn check_bins(p: &Bins) -> Result<()> {
    if p.access_ms.is_empty() || p.access_ms.len() > bins::MOST {
        let count = p.access_ms.len();
        let most = bins::MOST;
        return Err(Error::invalid(format!("bins.access_ms has {count} bins; give 1 to {most}")));
    }
    for (index, bin) in p.access_ms.iter().enumerate() {
        spread(&format!("bins.access_ms[{index}]"), bin, 0.0, SLOWEST)?;
    }
    within("bins.sector_us", p.sector_us, 0.0, 1e6)?;
    spread("bins.hit_ms", &p.hit_ms, 0.0, SLOWEST)
}

fn check_mechanical(p: &Mechanical, sectors: u64) -> Result<()> {
    within("mechanical.rpm", p.rpm, 60.0, 1e6)?;
    within("mechanical.surfaces", f64::from(p.surfaces), 1.0, 256.0)?;
    within("mechanical.settle_ms", p.settle_ms, 0.0, SLOWEST)?;
    within("mechanical.stroke_ms", p.stroke_ms, 0.0, SLOWEST)?;
    within("mechanical.root_part", p.root_part, 0.0, 1.0)?;
    within("mechanical.overhead_ms", p.overhead_ms, 0.0, SLOWEST)?;
    within("mechanical.skew", p.skew, 0.0, 1.0)?;
    spread("mechanical.hit_ms", &p.hit_ms, 0.0, SLOWEST)?;
    if p.zones.is_empty() || p.zones.len() > 1024 {
        let count = p.zones.len();
        return Err(Error::invalid(format!("mechanical.zones has {count} zones; give 1 to 1024")));
    }
    for zone in &p.zones {
        within("mechanical.zones.cylinders", f64::from(zone.cylinders), 1.0, 1e9)?;
        within("mechanical.zones.sectors_per_track", f64::from(zone.sectors_per_track), 1.0, 1e6)?;
    }
    let hold = MechanicalModel::capacity(p);
    match hold < sectors {
        true => Err(Error::invalid(format!(
            "mechanical.zones hold {hold} sectors, size says {sectors}; give more cylinders"
        ))),
        false => Ok(()),
    }
}

fn check_affine(what: &str, p: &Affine) -> Result<()> {
    within(&format!("{what}.base_us"), p.base_us, 0.0, SLOWEST * 1e3)?;
    within(&format!("{what}.kib_us"), p.kib_us, 0.0, 1e6)
}

fn check_ssd(p: &Ssd) -> Result<()> {
    within("ssd.servers", f64::from(p.servers), 1.0, 1024.0)?;
    check_affine("ssd.read", &p.read)?;
    check_affine("ssd.write", &p.write)?;
    spread("ssd.spread", &p.spread, 0.0, 1e6)?;
    let Some(buffer) = &p.write_buffer else { return Ok(()) };
    within("ssd.write_buffer.mib", buffer.mib, 0.0, 1e9)?;
    within("ssd.write_buffer.drain_mib_s", buffer.drain_mib_s, 0.0, 1e9)?;
    check_affine("ssd.write_buffer.full", &buffer.full)
}

fn check_network(p: &Network) -> Result<()> {
    within("network.rtt_us", p.rtt_us, 0.0, SLOWEST * 1e3)?;
    within("network.mib_s", p.mib_s, 0.001, 1e6)?;
    within("network.burst_kib", p.burst_kib, 0.0, 1e9)?;
    within("network.window", f64::from(p.window), 1.0, 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_profile_makes_a_model_says_its_source_and_survives_toml() {
        for profile in shipped().unwrap() {
            let model = profile.model().unwrap();
            assert_eq!(model.sectors(), profile.sectors().unwrap());
            assert!(!profile.source.is_empty() && !profile.about.is_empty(), "{}", profile.name);
            let text = profile.to_toml().unwrap();
            assert_eq!(Profile::parse(&text, "again").unwrap(), profile);
            assert_eq!(Profile::named(&profile.name).unwrap(), profile);
        }
    }

    #[test]
    fn the_seeds_disk_is_4_25_and_5_25_ms() {
        let profile = Profile::named("cheetah-15k4").unwrap();
        let linear = profile.linear.unwrap();
        assert_eq!((linear.base_ms, linear.seek_ms), (4.25, 5.25));
        assert_eq!(profile.cache.unwrap().segments, 64);
    }

    #[test]
    fn a_bad_profile_is_refused_in_one_sentence_that_names_the_value() {
        let linear = "base_ms = 1\nseek_ms = 1\nhit_ms = 1\n";
        let mechanical = "rpm = 7200\nsurfaces = 1\nsettle_ms = 1\nstroke_ms = 1\nroot_part = 1\n\
            overhead_ms = 0\nskew = 0\nhit_ms = 0\nzones = [{cylinders = 1, sectors_per_track = 9}]";
        let cases = [
            ("", "name"),
            ("name = 3", "line 1"),
            ("name = \"x\"\nsize = \"1G\"", "exactly one"),
            ("name = \"x\"\nsize = \"1G\"\nspeed = 3", "unknown field `speed`"),
            (&format!("name = \"x\"\nsize = \"huge\"\n[linear]\n{linear}"), "size"),
            (&format!("name = \"x\"\nsize = \"4K\"\n[linear]\n{linear}"), "size is 4K"),
            (
                "name = \"x\"\nsize = \"1G\"\n[linear]\nbase_ms = -3\nseek_ms = 1\nhit_ms = 1",
                "linear.base_ms is -3; give 0 to 100000",
            ),
            (
                "name = \"x\"\nsize = \"1G\"\n[linear]\nbase_ms = nan\nseek_ms = 1\nhit_ms = 1",
                "linear.base_ms is NaN",
            ),
            (
                "name = \"x\"\nsize = \"1G\"\n[linear]\nbase_ms = 1\nseek_ms = 1\nhit_ms = [3, 1]",
                "linear.hit_ms has quantiles that are not ascending",
            ),
            (
                &format!("name = \"x\"\nsize = \"1G\"\n[linear]\n{linear}sequential_ms = -1"),
                "linear.sequential_ms is -1",
            ),
            (
                &format!("name = \"x\"\nsize = \"1G\"\n[linear]\n{linear}write_sector_us = inf"),
                "linear.write_sector_us is inf",
            ),
            (
                &format!("name = \"x\"\nsize = \"1G\"\n[mechanical]\n{mechanical}"),
                "mechanical.zones hold 9 sectors",
            ),
            (
                "name = \"x\"\nsize = \"1G\"\n[network]\nrtt_us = 1\nmib_s = 0\nwindow = 1",
                "network.mib_s is 0",
            ),
        ];
        for (text, part) in cases {
            let error = Profile::parse(text, "p.toml").unwrap_err();
            let message = error.message();
            assert!(message.contains(part) && message.starts_with("p.toml"), "{part}: {message}");
            assert!(!message.contains('\n'), "{message}");
        }
    }
}
