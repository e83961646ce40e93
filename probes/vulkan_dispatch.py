"""Runs the shipped SPIR-V of saxpy once on one Vulkan device, with the device's own timestamps around it."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Sequence
from typing import Any

from probes import saxpy

WAIT_NS = 10_000_000_000


def dispatch(vk: Any, physical: Any, given: saxpy.Problem, stack: contextlib.ExitStack) -> tuple[bytes, float | None]:
    """Run the shader once.

    Returns: y as float32, and the seconds between two timestamps of the device (None if it has none).

    Raises:
        VkError, VkException: of the binding.
        LookupError: the device has no compute queue or no memory that the host can see.
    """
    family, timestamp_bits = compute_family(vk, physical)
    queue_info = vk.VkDeviceQueueCreateInfo(queueFamilyIndex=family, queueCount=1, pQueuePriorities=[1.0])
    device = vk.vkCreateDevice(physical, vk.VkDeviceCreateInfo(pQueueCreateInfos=[queue_info]), None)
    stack.callback(vk.vkDestroyDevice, device, None)
    x, x_bytes = buffer(vk, physical, device, len(given.x), stack)
    y, y_bytes = buffer(vk, physical, device, len(given.y), stack)
    x_bytes[:], y_bytes[:] = given.x, given.y
    layout, pipeline, descriptors = pipeline_for(vk, device, (x, y), stack)
    pool_info = vk.VkQueryPoolCreateInfo(queryType=vk.VK_QUERY_TYPE_TIMESTAMP, queryCount=2)
    queries = vk.vkCreateQueryPool(device, pool_info, None) if timestamp_bits else None
    if queries is not None:
        stack.callback(vk.vkDestroyQueryPool, device, queries, None)
    commands = command_buffer(vk, device, family, stack)
    vk.vkBeginCommandBuffer(commands, vk.VkCommandBufferBeginInfo())
    vk.vkCmdBindPipeline(commands, vk.VK_PIPELINE_BIND_POINT_COMPUTE, pipeline)
    vk.vkCmdBindDescriptorSets(commands, vk.VK_PIPELINE_BIND_POINT_COMPUTE, layout, 0, 1, [descriptors], 0, None)
    push = vk.ffi.from_buffer(struct.pack("fI", saxpy.FACTOR, saxpy.COUNT))
    vk.vkCmdPushConstants(commands, layout, vk.VK_SHADER_STAGE_COMPUTE_BIT, 0, len(push), push)
    if queries is not None:
        vk.vkCmdResetQueryPool(commands, queries, 0, 2)
        vk.vkCmdWriteTimestamp(commands, vk.VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT, queries, 0)
    vk.vkCmdDispatch(commands, saxpy.COUNT // saxpy.GROUP, 1, 1)
    if queries is not None:
        vk.vkCmdWriteTimestamp(commands, vk.VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, queries, 1)
    make_visible_to_host(vk, commands)
    vk.vkEndCommandBuffer(commands)
    submit_and_wait(vk, device, vk.vkGetDeviceQueue(device, family, 0), commands, stack)
    if queries is None:
        return bytes(y_bytes), None
    period_ns = vk.vkGetPhysicalDeviceProperties(physical).limits.timestampPeriod
    return bytes(y_bytes), elapsed_s(vk, device, queries, timestamp_bits, period_ns)


def compute_family(vk: Any, physical: Any) -> tuple[int, int]:
    """The first queue family that computes, and how many bits its timestamps have (0: it has none).

    Raises:
        LookupError: there is none.
    """
    for index, family in enumerate(vk.vkGetPhysicalDeviceQueueFamilyProperties(physical)):
        if family.queueFlags & vk.VK_QUEUE_COMPUTE_BIT:
            return index, family.timestampValidBits
    raise LookupError("no queue family with VK_QUEUE_COMPUTE_BIT")


def buffer(vk: Any, physical: Any, device: Any, size_bytes: int, stack: contextlib.ExitStack) -> tuple[Any, Any]:
    """A storage buffer and its bytes, mapped: memory that host and device both see.

    Raises:
        LookupError: the device has no such memory for storage buffers.
    """
    info = vk.VkBufferCreateInfo(size=size_bytes, usage=vk.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT)
    handle = vk.vkCreateBuffer(device, info, None)
    stack.callback(vk.vkDestroyBuffer, device, handle, None)
    needs = vk.vkGetBufferMemoryRequirements(device, handle)
    wanted = vk.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | vk.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
    memory = vk.vkGetPhysicalDeviceMemoryProperties(physical)
    for index in range(memory.memoryTypeCount):
        if needs.memoryTypeBits >> index & 1 and memory.memoryTypes[index].propertyFlags & wanted == wanted:
            break
    else:
        raise LookupError("no host-visible, coherent memory for storage buffers")
    allocation = vk.VkMemoryAllocateInfo(allocationSize=needs.size, memoryTypeIndex=index)
    block = vk.vkAllocateMemory(device, allocation, None)
    stack.callback(vk.vkFreeMemory, device, block, None)
    vk.vkBindBufferMemory(device, handle, block, 0)
    return handle, vk.vkMapMemory(device, block, 0, size_bytes, 0)


def pipeline_for(vk: Any, device: Any, buffers: Sequence[Any], stack: contextlib.ExitStack) -> tuple[Any, Any, Any]:
    """Layout, compute pipeline and descriptor set with `buffers` bound as 0, 1..."""
    code = saxpy.kernel("saxpy.spv")
    module = vk.vkCreateShaderModule(device, vk.VkShaderModuleCreateInfo(codeSize=len(code), pCode=code), None)
    stack.callback(vk.vkDestroyShaderModule, device, module, None)
    storage, compute = vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, vk.VK_SHADER_STAGE_COMPUTE_BIT
    bindings = [
        vk.VkDescriptorSetLayoutBinding(binding=i, descriptorType=storage, descriptorCount=1, stageFlags=compute)
        for i in range(len(buffers))
    ]
    set_layout = vk.vkCreateDescriptorSetLayout(device, vk.VkDescriptorSetLayoutCreateInfo(pBindings=bindings), None)
    stack.callback(vk.vkDestroyDescriptorSetLayout, device, set_layout, None)
    push = vk.VkPushConstantRange(stageFlags=compute, offset=0, size=8)
    layout_info = vk.VkPipelineLayoutCreateInfo(pSetLayouts=[set_layout], pPushConstantRanges=[push])
    layout = vk.vkCreatePipelineLayout(device, layout_info, None)
    stack.callback(vk.vkDestroyPipelineLayout, device, layout, None)
    stage = vk.VkPipelineShaderStageCreateInfo(stage=compute, module=module, pName="main")
    info = vk.VkComputePipelineCreateInfo(stage=stage, layout=layout)
    pipeline = vk.vkCreateComputePipelines(device, None, 1, [info], None)[0]
    stack.callback(vk.vkDestroyPipeline, device, pipeline, None)
    sizes = [vk.VkDescriptorPoolSize(type=storage, descriptorCount=len(buffers))]
    pool = vk.vkCreateDescriptorPool(device, vk.VkDescriptorPoolCreateInfo(maxSets=1, pPoolSizes=sizes), None)
    stack.callback(vk.vkDestroyDescriptorPool, device, pool, None)
    request = vk.VkDescriptorSetAllocateInfo(descriptorPool=pool, pSetLayouts=[set_layout])
    descriptors = vk.vkAllocateDescriptorSets(device, request)[0]
    writes = [
        vk.VkWriteDescriptorSet(
            dstSet=descriptors,
            dstBinding=i,
            descriptorCount=1,
            descriptorType=storage,
            pBufferInfo=[vk.VkDescriptorBufferInfo(buffer=handle, offset=0, range=4 * saxpy.COUNT)],
        )
        for i, handle in enumerate(buffers)
    ]
    vk.vkUpdateDescriptorSets(device, len(writes), writes, 0, None)
    return layout, pipeline, descriptors


def command_buffer(vk: Any, device: Any, family: int, stack: contextlib.ExitStack) -> Any:
    """An empty primary command buffer for queues of `family`."""
    pool = vk.vkCreateCommandPool(device, vk.VkCommandPoolCreateInfo(queueFamilyIndex=family), None)
    stack.callback(vk.vkDestroyCommandPool, device, pool, None)
    request = vk.VkCommandBufferAllocateInfo(
        commandPool=pool, level=vk.VK_COMMAND_BUFFER_LEVEL_PRIMARY, commandBufferCount=1
    )
    return vk.vkAllocateCommandBuffers(device, request)[0]


def make_visible_to_host(vk: Any, commands: Any) -> None:
    """Record the barrier without which the host may read old numbers, even from coherent memory."""
    barrier = vk.VkMemoryBarrier(srcAccessMask=vk.VK_ACCESS_SHADER_WRITE_BIT, dstAccessMask=vk.VK_ACCESS_HOST_READ_BIT)
    stages = (vk.VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, vk.VK_PIPELINE_STAGE_HOST_BIT)
    vk.vkCmdPipelineBarrier(commands, *stages, 0, 1, [barrier], 0, None, 0, None)


def submit_and_wait(vk: Any, device: Any, queue: Any, commands: Any, stack: contextlib.ExitStack) -> None:
    """Run the commands to their end, for at most `WAIT_NS`.

    Raises:
        VkTimeout: they did not end in time.
    """
    fence = vk.vkCreateFence(device, vk.VkFenceCreateInfo(), None)
    stack.callback(vk.vkDestroyFence, device, fence, None)
    vk.vkQueueSubmit(queue, 1, [vk.VkSubmitInfo(pCommandBuffers=[commands])], fence)
    vk.vkWaitForFences(device, 1, [fence], vk.VK_TRUE, WAIT_NS)


def elapsed_s(vk: Any, device: Any, queries: Any, valid_bits: int, period_ns: float) -> float:
    """Seconds between the two timestamps; they wrap after `valid_bits` bits."""
    ticks = vk.ffi.new("uint64_t[2]")
    flags = vk.VK_QUERY_RESULT_64_BIT | vk.VK_QUERY_RESULT_WAIT_BIT
    vk.vkGetQueryPoolResults(device, queries, 0, 2, 16, ticks, 8, flags)
    return float((ticks[1] - ticks[0] & (1 << valid_bits) - 1) * period_ns * 1e-9)
