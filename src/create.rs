//! `tidegate create`: the files and the format of a volume, without serving it.

use std::process::ExitCode;

use tidegate_daemon::Failure;
use tidegate_daemon::back::attach::is_same;
use tidegate_daemon::create::{CreateOptions, Overwrite, Own};

use crate::args::Create;
use crate::first_run::{CACHE_BYTES, ORIGIN_BYTES};
use crate::make::{is_there, lies_in, make};
use crate::up::Place;
use crate::{attach, say, units};

pub fn run(args: &Create) -> Result<ExitCode, Failure> {
    let place = Place::new(&args.dir, args.origin.as_deref(), args.cache.as_deref())?;
    let Place { folder, path, named, .. } = &place;
    let mut file = place.file.clone();
    let configured = file.clone().in_folder(folder);
    file.override_with(named.clone());
    let mut config = file.in_folder(folder);
    named.reaches(&mut config);
    config.keep_states_apart(path, &[])?;
    // One at a time: what is formatted is said, never guessed.
    let (volume, configured) = match config.places(args.volume.as_deref()).map_err(|message| Failure::new(crate::USAGE, message))?[..] {
        [place] => (&config.volumes[place], &configured.volumes[place]),
        _ => return Err(Failure::new(crate::USAGE, format!("{} describes several volumes; say which with --volume", path.display()))),
    };
    let size_of = |role, said: Option<u64>, is_named, disk, bytes, flag| {
        let is_free = is_named || lies_in(folder, disk);
        if said.is_none() && !is_free {
            is_there(role, disk, path, flag)?;
        }
        Ok(said.or(is_free.then_some(bytes)))
    };
    let options = CreateOptions {
        origin_bytes: size_of("origin", args.origin_size, named.origin.is_some(), &volume.origin, ORIGIN_BYTES, "--origin-size")?,
        cache_bytes: size_of("cache", args.cache_size, named.cache.is_some(), &volume.cache, CACHE_BYTES, "--cache-size")?,
        overwrite: if args.force { Overwrite::Anything } else { Overwrite::Nothing },
        ..CreateOptions::new(volume.origin.clone(), volume.cache.clone())
    };
    // Another cache before its own origin is one for this volume.
    let own = Own { origin: place.is_new || is_same(&volume.origin, &configured.origin), cache: is_same(&volume.cache, &configured.cache) };
    let created = make(&place, volume, &options, own)?;
    attach::tell_kept_size(args.cache_size, &created, &volume.cache);
    let serve = volume.reach.complete("serve it with `tidegate up`");
    say(&format!(
        "origin {}: {}, {}\ncache {}: formatted, {} sets{}\n{serve}",
        volume.origin.display(),
        units::show_size(created.volume_bytes()),
        if created.origin_is_new { "new and sparse" } else { "kept as it is" },
        volume.cache.display(),
        created.geometry.sets,
        if created.cache_is_new { ", new" } else { "" },
    ));
    Ok(ExitCode::SUCCESS)
}
