"""What each end of a push holds: two buckets, and a larger tensor only while it is on its way."""

import torch

from grpo_proto.staging import Staging, buckets_in_the_way, planned_bytes
from grpo_proto.transport import plan_manifest

MIB = 2**20
NOWHERE = torch.device("meta")


def test_a_large_tensor_takes_memory_once_and_only_while_it_comes():
    tensors = [("embedding", "uint8", [640 * MIB]), ("head", "uint8", [500 * MIB])]
    tensors += [(f"w{number}", "uint8", [16 * MIB]) for number in range(10)]
    manifest = plan_manifest(tensors, 64 * MIB)
    assert manifest.bucket_bytes == [640 * MIB, 500 * MIB, 64 * MIB, 64 * MIB, 32 * MIB]
    staging = Staging()
    staging.prepare(manifest, NOWHERE)
    assert staging.num_bytes == 2 * 64 * MIB
    assert [staging.buffer(bucket).numel() for bucket in (0, 1, 2)] == [640 * MIB, 500 * MIB, 64 * MIB]
    assert staging.num_bytes == (2 * 64 + 640) * MIB
    assert planned_bytes(manifest) == staging.num_bytes
    assert [staging.overlap(bucket, bucket + 1) for bucket in range(4)] == [False, True, True, True]
    assert buckets_in_the_way(manifest) == {0}
    staging.release()
    assert staging.num_bytes == 2 * 64 * MIB


def test_the_buffers_of_the_turns_are_kept_from_push_to_push():
    manifest = plan_manifest([(f"w{number}", "uint8", [100]) for number in range(8)], 300)
    staging = Staging()
    staging.prepare(manifest, torch.device("cpu"))
    places = [staging.buffer(bucket).data_ptr() for bucket in (0, 1)]
    staging.prepare(manifest, torch.device("cpu"))
    assert [staging.buffer(bucket).data_ptr() for bucket in (2, 3)] == places
