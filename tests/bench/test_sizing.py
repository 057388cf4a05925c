import pytest

from vtoken_sdk.bench.settings import RunSettings
from vtoken_sdk.bench.sizing import Sizes, blocks_for, check_sizes, choose_sizes
from vtoken_sdk.errors import ConfigError


def choose(lengths, *, model_limit=None, **settings):
    return choose_sizes(RunSettings(**settings), lengths, block_size=32, model_limit=model_limit)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (32, 1), (33, 2)])
def test_blocks_for(tokens, blocks):
    assert blocks_for(tokens, 32) == blocks


def test_by_default_every_request_has_room():
    assert choose([100, 40], max_tokens=20) == Sizes(
        block_size=32, max_model_len=120, num_blocks=4 + 2 + 1, max_num_seqs=2
    )


def test_what_the_user_says_is_kept():
    sizes = choose(
        [100], max_tokens=20, block_size=64, max_model_len=200, num_blocks=9, max_num_seqs=5
    )
    assert sizes == Sizes(64, 200, 9, 5)


def test_a_long_max_model_len_raises_the_default_pool():
    assert choose([10], max_tokens=10, max_model_len=320).num_blocks == 11


def test_a_pool_too_small_for_one_request_names_the_least_that_works():
    with pytest.raises(ConfigError, match=r"--num-blocks 4 is too small.*at least --num-blocks 5"):
        choose([100], max_tokens=20, num_blocks=4)
    assert choose([100], max_tokens=20, num_blocks=5).num_blocks == 5


def test_a_max_model_len_too_short_names_what_is_needed():
    with pytest.raises(ConfigError, match=r"too short.*make 120 tokens"):
        choose([100, 3], max_tokens=20, max_model_len=119)


def test_more_tokens_than_the_model_takes_are_refused():
    with pytest.raises(ConfigError, match="120 tokens are more than the model's 119"):
        choose([100], max_tokens=20, model_limit=119)
    assert choose([100], max_tokens=20, model_limit=120).max_model_len == 120


def test_a_max_model_len_beyond_the_model_is_not_blamed_on_the_prompts():
    with pytest.raises(ConfigError, match=r"--max-model-len 200 .* use 119 or less"):
        choose([10], max_tokens=20, max_model_len=200, model_limit=119)


def test_before_the_prompts_are_tokenised_only_what_cannot_work_is_refused():
    def check(**settings):
        check_sizes(RunSettings(**settings), 3, block_size=32, model_limit=512)

    check(max_tokens=31, num_blocks=2)
    with pytest.raises(ConfigError, match=r"at least 33 tokens .* at least --num-blocks 3"):
        check(max_tokens=32, num_blocks=2)
    check(max_tokens=20, max_model_len=21)
    with pytest.raises(ConfigError, match="make at least 21 tokens"):
        check(max_tokens=20, max_model_len=20)


def test_a_batch_has_room_for_a_token_of_each_running_request():
    assert choose([1] * 4, max_num_batched_tokens=4).max_num_seqs == 4
    assert choose([1] * 4, max_num_batched_tokens=2, max_num_seqs=2).max_num_seqs == 2
    with pytest.raises(ConfigError, match=r"3 is too small for 4 requests at once: use at least 4"):
        choose([1] * 4, max_num_batched_tokens=3)


def test_requests_at_once_are_limited():
    assert choose([1] * 300, max_tokens=1).max_num_seqs == 256
