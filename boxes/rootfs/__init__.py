"""The provider `rootfs`: boxes from root file systems, in namespaces of the kernel, without an engine."""
