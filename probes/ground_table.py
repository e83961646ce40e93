"""What each part of a finding's ground consists of: files, libraries, commands, variables. Data for `probes.ground`.

A pattern is glob(7)'s, in the device's own paths. Where one begins with "$NAME/", NAME is a key of `VARIABLE_FOLDERS`.
"""

from __future__ import annotations

from collections.abc import Mapping

from probes import gpu_nodes

ALWAYS = ("environment", "kernel", "machine", "own")  # under every finding that rests on anything
LIBRARY_FOLDERS = (
    "/usr/lib/*-linux-gnu",
    "/usr/lib/*-linux-gnu/tegra",
    "/usr/lib/*-linux-gnu/tegra-egl",
    "/usr/lib/*-linux-gnu/nvidia",
    "/usr/lib/*-linux-gnu/nvidia/current",
    "/usr/lib/*-linux-gnu/dri",
    "/usr/lib/*-linux-gnu/pocl",
    "/usr/lib/*-linux-gnu/gstreamer-1.0",
    "/usr/lib64",
    "/usr/lib/wsl/lib",
    "/usr/local/lib",
    "/usr/local/cuda*/lib64",
    "/usr/local/cuda*/targets/*/lib",
    "/usr/local/tensorrt*/lib",
    "/opt/tensorrt*/lib",
    "/opt/nvidia/l4t-gpu-libs/*",
)
VARIABLE_FOLDERS: Mapping[str, tuple[str, str]] = {  # name: the variable, and what counts when it is not set
    "CONFIG": ("XDG_CONFIG_HOME", "~/.config"),
    "CONFIGS": ("XDG_CONFIG_DIRS", "/etc/xdg"),
    "DATA": ("XDG_DATA_HOME", "~/.local/share"),
    "DATAS": ("XDG_DATA_DIRS", "/usr/local/share:/usr/share"),
    "HOME": ("HOME", ""),
}
FILES: Mapping[str, tuple[str, ...]] = {
    "l4t": ("/etc/nv_tegra_release", "/etc/nv_boot_control.conf"),
    "machine": (  # another board, or a container: whoever takes a disk along takes no findings along
        "/proc/device-tree/model",
        "/proc/device-tree/compatible",
        "/proc/device-tree/serial-number",
        "/proc/device-tree/nvidia,boardids",
        "/proc/device-tree/chosen/ids",
        "/proc/device-tree/chosen/plugin-manager/ids/*",
        "/sys/devices/soc0/family",
        "/sys/devices/soc0/machine",
        "/sys/devices/soc0/soc_id",
        "/sys/class/dmi/id/board_name",
        "/sys/class/dmi/id/product_name",
        "/.dockerenv",
        "/run/.containerenv",
        "/run/systemd/container",
    ),
    "driver": (
        "/proc/driver/nvidia/version",
        "/sys/module/nvidia/version",
        "/sys/module/nvidia*/srcversion",
        "/sys/module/nvgpu*/srcversion",
        "/sys/module/amdgpu/srcversion",
        "/sys/module/i915/srcversion",
        "/sys/module/xe/srcversion",
        "/sys/module/nouveau/srcversion",
    ),
    "nodes": (
        *gpu_nodes.ALL,
        "/dev/nvidia*",  # and the other engines' nodes
        "/dev/nvhost-*",
        "/dev/v4l2-nv*",
        "/dev/nvgpu",
        "/dev/nvgpu/*/*",
        "/dev/dri/*",
    ),
    "mesa": ("/usr/share/drirc.d/*", "/etc/drirc", "$HOME/.drirc"),
    "tensorrt": ("/usr/src/tensorrt/bin/trtexec", "/usr/lib/python3*/dist-packages/tensorrt*"),
    "video_commands": ("$DATA/gstreamer-1.0/plugins/*",),
    "packages": ("/var/lib/dpkg/status", "/var/lib/dpkg/updates/[0-9]*"),
    "cdi": ("/etc/cdi/*", "/run/cdi/*", "/var/run/cdi/*"),
    "container_runtime": (
        "/etc/nvidia-container-runtime/*",
        "/etc/nvidia-container-runtime/host-files-for-container.d/*",
        "/etc/docker/daemon.json",
        "/usr/bin/nvidia-ctk",
        "/usr/bin/nvidia-container-runtime",
        "/usr/local/bin/nvidia-ctk",
    ),
}
# Manifests of drivers and layers: with them the libraries that they name count, wherever those lie.
MANIFESTS: Mapping[str, tuple[str, ...]] = {
    "vulkan": (
        "/etc/vulkan/*.d/*",
        "/usr/local/etc/vulkan/*.d/*",
        "/usr/share/vulkan/*.d/*",
        "/usr/local/share/vulkan/*.d/*",
        "$CONFIG/vulkan/*.d/*",
        "$CONFIGS/vulkan/*.d/*",
        "$DATA/vulkan/*.d/*",
        "$DATAS/vulkan/*.d/*",
    ),
    "opencl": ("/etc/OpenCL/vendors/*",),
    "egl": ("/etc/glvnd/egl_vendor.d/*", "/usr/share/glvnd/egl_vendor.d/*", "/usr/share/egl/egl_external_platform.d/*"),
}
MANIFEST_VARIABLES: Mapping[str, tuple[str, ...]] = {  # ":" lists of manifests, or of folders of them
    "vulkan": ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES"),
    "opencl": ("OCL_ICD_VENDORS", "OCL_ICD_FILENAMES"),
    "egl": ("__EGL_VENDOR_LIBRARY_FILENAMES", "__EGL_VENDOR_LIBRARY_DIRS"),
}
LIBRARIES: Mapping[str, tuple[str, ...]] = {
    # what of NVIDIA's driver lies below every API, on a PC and on Tegra
    "driver": (
        "libnvidia-ml.so*",
        "libnvidia-gpucomp.so*",
        "libnvidia-tls.so*",
        "libnvrm*.so*",
        "libnvos.so*",
        "libnvsocsys.so*",
    ),
    "libcuda": ("libcuda.so*", "libnvidia-ptxjitcompiler.so*", "libnvidia-nvvm*.so*", "libcudadebugger.so*"),
    "cuda_libraries": ("libcudart.so*", "libnvrtc*.so*", "libcublas*.so*", "libnvJitLink.so*"),
    "cudnn_libraries": ("libcudnn*.so*",),
    "tensorrt_libraries": ("libnvinfer*.so*", "libnvonnxparser*.so*"),
    "video_libraries": (
        "libnvidia-encode.so*",
        "libnvcuvid*.so*",
        "libtegrav4l2.so*",
        "libnvv4l2.so*",
        "libv4l2_nv*.so*",
        "libavcodec.so*",
        "libgstnv*.so*",
        "libgstomx.so*",
    ),
    "dla_libraries": ("libnvdla_*.so*", "libcudla.so*", "libnvcudla.so*"),
    "vulkan_libraries": (
        "libvulkan*.so*",
        "libVkLayer_*.so*",
        "libLLVM*.so*",
        "libdrm*.so*",
        "libnvidia-vulkan*.so*",
        "libnvidia-glcore.so*",
        "libnvidia-glvkspirv.so*",
        "libGLX_nvidia.so*",
    ),
    "opencl_libraries": (
        "libOpenCL.so*",
        "libpocl*.so*",
        "libclang*.so*",
        "libLLVM*.so*",
        "libnvidia-opencl.so*",
        "libnvidia-compiler.so*",
        "libMesaOpenCL.so*",
        "libRusticlOpenCL.so*",
    ),
    "egl_libraries": (
        "libEGL*.so*",
        "libGL*.so*",
        "libglapi.so*",
        "libgallium*.so*",
        "libgbm.so*",
        "libLLVM*.so*",
        "libdrm*.so*",
        "libnvidia-eglcore.so*",
        "libnvidia-glsi.so*",
        "*_dri.so",
    ),
}
COMMANDS: Mapping[str, tuple[str, ...]] = {"video_commands": ("ffmpeg", "gst-inspect-1.0")}  # looked up in PATH
VARIABLES = (  # beginnings of names
    "CUDA_",
    "DISPLAY",
    "DRI_",
    "EDGE_AGENT_PROBE_PATH",
    "EGL_",
    "GALLIUM_",
    "GGML_",
    "GST_",
    "LD_",
    "LIBGL_",
    "LLAMA_",
    "LP_",
    "MESA_",
    "NVIDIA_",
    "OCL_",
    "OMP_",
    "ORT_",
    "POCL_",
    "PYOPENCL_",
    "PYTHONHOME",
    "PYTHONPATH",
    "VK_",
    "WAYLAND_DISPLAY",
    "WGPU_",
    "XDG_CONFIG_",
    "XDG_DATA_",
    "__EGL_",
    "__GL",
    "container",
)
READ = ("environment", "kernel", "machine", "own", "pci", "python")  # parts that `probes.ground` has a function for
PARTS = frozenset({*READ, *FILES, *MANIFESTS, *LIBRARIES, *COMMANDS})
