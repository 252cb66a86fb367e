use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use super::*;

/// Runs a test with each of the two resolvers, in a directory of its own.
fn both(test: impl Fn(&Path, &Dir)) {
    for resolver in [Resolver::Kernel, Resolver::Walk] {
        let place = tempfile::tempdir().unwrap();
        let mut dir = Dir::open_trusted(place.path()).unwrap();
        dir.resolver = resolver;
        test(place.path(), &dir);
    }
}

fn read(file: io::Result<File>) -> io::Result<String> {
    io::read_to_string(file?)
}

#[test]
fn links_are_refused_in_every_component() {
    both(|path, dir| {
        fs::create_dir(path.join("real")).unwrap();
        fs::write(path.join("real/file"), "x").unwrap();
        symlink("real", path.join("to_dir")).unwrap();
        symlink("real/file", path.join("to_file")).unwrap();
        symlink("/etc", path.join("out")).unwrap();
        assert_eq!(read(dir.open_regular("real/file", OFlags::RDONLY)).unwrap(), "x");
        for link in ["to_dir", "out"] {
            assert!(dir.dir(link).is_err(), "{link}");
            assert!(dir.make_dirs(Path::new(link).join("new"), 0o755).is_err(), "{link}");
        }
        for link in ["to_file", "to_dir/file", "out/passwd", "to_dir"] {
            assert!(dir.open_regular(link, OFlags::RDONLY).is_err(), "{link}");
        }
    });
}

#[test]
fn links_that_stay_inside_may_be_followed_and_others_never() {
    both(|path, dir| {
        fs::create_dir_all(path.join("a/b")).unwrap();
        symlink("a/b", path.join("in")).unwrap();
        symlink("../../in", path.join("a/b/back")).unwrap();
        symlink("..", path.join("a/up")).unwrap();
        symlink("../..", path.join("a/away")).unwrap();
        symlink(path.join("a"), path.join("absolute")).unwrap();
        symlink("loop", path.join("loop")).unwrap();
        let inode = |node: Node| node.stat.st_ino;
        let wanted = inode(dir.node("a/b", Links::Refused).unwrap());
        for inside in ["in", "a/b/back", "a/up/in"] {
            assert_eq!(inode(dir.node(inside, Links::Inside).unwrap()), wanted, "{inside}");
        }
        for outside in ["a/away", "a/away/x", "absolute", "absolute/b", "loop"] {
            assert!(dir.node(outside, Links::Inside).is_err(), "{outside}");
        }
    });
}

#[test]
fn paths_that_leave_textually_are_refused() {
    both(|_, dir| {
        for path in ["..", "../x", "/etc", "a/../../x"] {
            assert!(dir.node(path, Links::Inside).is_err(), "{path}");
            assert!(dir.make_dirs(path, 0o755).is_err(), "{path}");
        }
        for name in ["", ".", "..", "a/b", "/"] {
            assert!(dir.create_dir(name, 0o755).is_err() && dir.create_file(name, 0o644).is_err(), "{name}");
            assert!(dir.remove_tree(name).is_err(), "{name}");
        }
    });
}

#[test]
fn pipes_and_devices_are_refused_without_being_opened() {
    both(|path, dir| {
        let mode = nix::sys::stat::Mode::from_bits_truncate(0o600);
        nix::unistd::mkfifo(&path.join("pipe"), mode).unwrap();
        // Opening a pipe for reading would block until there is a writer.
        let refused = dir.open_regular("pipe", OFlags::RDONLY).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        let refused = dir.node("pipe", Links::Refused).unwrap().open_dir().unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::NotADirectory);
        fs::create_dir(path.join("directory")).unwrap();
        assert!(dir.open_regular("directory", OFlags::RDONLY).is_err());
    });
}

#[test]
fn new_directories_have_exactly_their_mode() {
    both(|path, dir| {
        dir.make_dirs("a/b", 0o2777).unwrap();
        for made in ["a", "a/b"] {
            assert_eq!(fs::metadata(path.join(made)).unwrap().permissions().mode() & 0o7777, 0o2777);
        }
    });
}

#[test]
fn removal_removes_links_but_not_their_targets() {
    both(|path, dir| {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("kept"), "x").unwrap();
        fs::create_dir_all(path.join("tree/a/b")).unwrap();
        symlink(outside.path(), path.join("tree/a/link")).unwrap();
        symlink(outside.path(), path.join("link")).unwrap();
        dir.remove_tree("tree").unwrap();
        dir.remove_tree("link").unwrap();
        dir.remove_tree("nothing").unwrap();
        assert_eq!(fs::read_dir(path).unwrap().count(), 0);
        assert!(outside.path().join("kept").exists());
    });
}

#[test]
fn removal_handles_trees_deeper_than_any_path_and_wider_than_a_batch() {
    both(|path, dir| {
        let mut deep = dir.create_dir("tree", 0o755).unwrap();
        for index in 0..REMOVAL_BATCH + 10 {
            deep.create_file(index.to_string(), 0o644).unwrap();
        }
        // Together longer than PATH_MAX.
        for _ in 0..600 {
            deep = deep.create_dir("deeper", 0o755).unwrap();
        }
        dir.remove_tree("tree").unwrap();
        assert_eq!(fs::read_dir(path).unwrap().count(), 0);
    });
}

#[test]
fn directory_that_is_replaced_after_it_was_found_is_opened_itself() {
    both(|path, dir| {
        fs::create_dir_all(path.join("found/inner")).unwrap();
        let node = dir.node("found", Links::Refused).unwrap();
        fs::rename(path.join("found"), path.join("moved")).unwrap();
        symlink("/", path.join("found")).unwrap();
        assert_eq!(node.open_dir().unwrap().names(10).unwrap(), ["inner"]);
    });
}

/// A container that keeps swapping a directory for a link gets no file outside of it read or written.
#[test]
fn a_directory_that_is_swapped_for_a_link_never_leads_outside() {
    both(|path, dir| {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("who"), "host").unwrap();
        fs::create_dir(path.join("swapped")).unwrap();
        fs::write(path.join("swapped/who"), "volume").unwrap();
        symlink(outside.path(), path.join("link")).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let swapper = {
            let (stop, dir) = (Arc::clone(&stop), dir.try_clone().unwrap());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    renameat_with(&dir.fd, "swapped", &dir.fd, "link", RenameFlags::EXCHANGE).unwrap();
                }
            })
        };
        let mut seen = 0;
        for index in 0..5000 {
            for links in [Links::Refused, Links::Inside] {
                let Ok(node) = dir.node("swapped/who", links) else { continue };
                let text = io::read_to_string(File::from(reopen(&node.fd, OFlags::RDONLY).unwrap()));
                assert_eq!(text.unwrap(), "volume");
                seen += 1;
            }
            if let Ok(inner) = dir.dir("swapped") {
                drop(inner.create_file(index.to_string(), 0o644).unwrap());
            }
        }
        stop.store(true, Ordering::Relaxed);
        swapper.join().unwrap();
        assert!(seen > 0);
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    });
}
