"""Bugs planted between a text and the loss: tokenizers, instruction data, rows, blends, the journal of `prepare`.

Each says what it breaks: the mask of a loss, the borders of documents, the order of samples, a template's limits, a tokenizer's ids.
"""

from planting import Mutation

DATA = 'worker_runtime/data'
CHAT = f'{DATA}/chat'
TOKENIZER = 'worker_runtime/tokenizer'

DATASETS = f'//{DATA}:dataset_test'
PACKED = f'//{DATA}:packing_test'
BLENDS = f'//{DATA}:blend_test'
MEGATRON = f'//{DATA}:megatron_order_test'
CHATS = f'//{CHAT}:chat_encoder_test'
TEMPLATES = f'//{CHAT}/jinja:chat_template_test'
GOLDEN_TEMPLATES = f'//{CHAT}/jinja:golden_test'
PIPELINES = f'//{DATA}/prepare:pipeline_test'
JOURNALS = f'//{DATA}/prepare:journal_test'
READERS = f'//{DATA}/prepare:reader_test'
JSONS = f'//{TOKENIZER}/json:tokenizer_json_test'

MUTATIONS = [
    Mutation('letters are lost without a word', f'{DATA}/prepare/record_encoder.cc',
             'looks_for_lost_bytes_ && !IsUtf8(record)', 'looks_for_lost_bytes_ && record.empty()', PIPELINES),
    Mutation('the loss is divided by all targets, counted or not', f'{DATA}/dataset.cc',
             'if (all_count) {', 'if (all_count || place.row >= 0) {', DATASETS, 'mask'),
    Mutation('answers of a pair differ behind the end of their halves', f'{DATA}/pair_rows.cc',
             'if (length == KeptOf(pairs_ + pair)) {', 'if (LengthOf(pair) == LengthOf(pairs_ + pair)) {', f'//{DATA}:pair_rows_test', 'rows'),
    Mutation('a target counts by the bit of the token before it', f'{DATA}/dataset.cc',
             'targets[i] = counted[i + 1] != 0', 'targets[i] = counted[i] != 0', DATASETS, 'mask'),
    Mutation("a document's last token has the next document's first as target", f'{DATA}/dataset.cc',
             'if (rows.are_documents()) counted[filled] = 0;', '', DATASETS, 'borders'),
    Mutation('the padding of a row belongs to its first document', f'{DATA}/dataset.cc',
             'parts_->sequence_length - filled, static_cast<int32_t>(filled));', 'parts_->sequence_length - filled, 0);', DATASETS, 'borders'),
    Mutation('all sources go through their samples in the same order', f'{DATA}/dataset.cc',
             'static_cast<uint64_t>(source) * 0x9e3779b97f4a7c15);', 'static_cast<uint64_t>(source) * 0);', DATASETS, 'order'),
    Mutation('a short file among many ends the run', f'{DATA}/dataset.cc',
             'if (absl::IsOutOfRange(why)) {', 'if (absl::IsOutOfRange(why) && weight.has_value()) {', DATASETS, 'order'),
    Mutation('a file is left out because its last document is too long', f'{DATA}/packed_rows.cc',
             'return is_short ? absl', 'return is_short || has_validation ? absl', DATASETS, 'order'),
    Mutation('a file whose documents are all dropped is taken for a short one', f'{DATA}/packed_rows.cc',
             'dropped == 0 && ', 'dropped >= 0 && ', DATASETS, 'order'),
    Mutation('a document that is cut fills more than its row', f'{DATA}/packed_rows.cc',
             'range.count = std::min<int64_t>(range.count, sequence_length_);', '', DATASETS, 'borders'),
    Mutation('held-out rows are the documents of the training rows', f'{DATA}/packed_rows.cc',
             '(is_training ? 0 : training_documents_)', '(is_training ? 0 : 0)', DATASETS, 'borders'),
    Mutation('a row with room for two tokens takes no more', f'{DATA}/packing.cc',
             'if (left >= 2) {', 'if (left > 2) {', PACKED, 'borders'),
    Mutation('a room stays open when its last row leaves it', f'{DATA}/packing.cc',
             'if (first_[room] == kNone) rooms_.Erase(room);', '', PACKED, 'borders'),
    Mutation('a share of a blend is rounded down', f'{DATA}/blend.cc',
             '(twice + whole) /', 'twice /', BLENDS, 'order'),
    Mutation("the right side of a blend counts the left one's samples", f'{DATA}/blend.cc',
             'position -= before;', 'position -= before / 2;', BLENDS, 'order'),
    Mutation("Megatron's last epoch is shuffled apart below three quarters", f'{DATA}/megatron_order.cc',
             'kSeparateBelow = 0.80;', 'kSeparateBelow = 0.75;', MEGATRON, 'order'),
    Mutation("numpy's shuffle stops one early", f'{DATA}/megatron_order.cc',
             'i-- > 1;) std::swap', 'i-- > 2;) std::swap', MEGATRON, 'order'),
    Mutation("Megatron's split rounds down", f'{DATA}/megatron_rows.cc',
             'std::nearbyint((1.0', 'std::floor((1.0', DATASETS, 'order'),
    Mutation("the header before an answer counts", f'{CHAT}/answer_spans.cc',
             'if (without.text != before) {', 'if (without.text != before || message + 1 > 0) {', CHATS, 'mask'),
    Mutation("the line's end behind a turn counts", f'{CHAT}/answer_spans.cc',
             'return at_special ? begin + answer.size() : end;', 'return at_special ? end : begin + answer.size();', CHATS, 'mask'),
    Mutation('with --train-on last every answer counts', f'{CHAT}/conversation.cc',
             'if (seen) answers[i] = false;', '', CHATS, 'mask'),
    Mutation('a token over the border of an answer does not count', f'{CHAT}/counted_text.cc',
             'span.begin < span.end && begin < span.end && end > span.begin', 'begin >= span.begin && begin < span.end', CHATS, 'mask'),
    Mutation("white space that a special token swallowed ends at the tokenizer's own space", f'{CHAT}/counted_text.cc',
             'after_special_ = special || (after_special_ && bytes.empty());', 'after_special_ = special;', CHATS, 'mask'),
    Mutation("an answer's thoughts have one name", f'{CHAT}/conversation.cc',
             'made.Set("reasoning_content", *thoughts);', '', f'//{CHAT}:conversation_test', 'template'),
    Mutation("a user's text may end a turn of Gemma's", f'{CHAT}/special_texts.cc',
             '!is_special && IsSpecialOfAFormat(text);', '!is_special && IsSpecialOfAFormat(text + "x");', CHATS, 'borders'),
    Mutation("a part of a content may begin a special token", f'{CHAT}/special_texts.cc',
             'if (is_part && EndsLikeBegin(*pass->texts, text)) add_break(text.size());', 'if (is_part && text.empty()) add_break(0);', CHATS, 'borders'),
    Mutation('a search in a long text costs nothing', f'{CHAT}/jinja/budget.h',
             'return ChargeWalks(bytes - wanted + 1, wanted / kBytesPerStep);', 'return absl::OkStatus();', TEMPLATES, 'limits'),
    Mutation('a variable that a loop sets is there in the next round', f'{CHAT}/jinja/evaluator.cc',
             'const Exchanged<Scope*> inside(&scope_, &scope);\n    CONVENE_RETURN_IF_ERROR(Assign(statement.target, items[',
             'CONVENE_RETURN_IF_ERROR(Assign(statement.target, items[', GOLDEN_TEMPLATES, 'template'),
    Mutation('one value that is no number makes a JSON line broken', f'{DATA}/prepare/json_field.cc',
             'ReadJson<rapidjson::kParseNanAndInfFlag>', 'ReadJson<0>', f'//{DATA}/prepare:json_field_test', 'lines'),
    Mutation('JSON lines without the field are a text', f'{DATA}/prepare/chunk_reader.cc',
             'if (!keys.ok() || lines.size() < 2 ||', 'if (!keys.ok() || lines.size() < 3 ||', READERS, 'lines'),
    Mutation('JSON lines whose first document is long are a text', f'{DATA}/prepare/chunk_reader.cc',
             'ends < 2 && head.size() <= most_bytes', 'ends < 2 && head.size() * 4 <= most_bytes', READERS, 'lines'),
    Mutation("a whole zstd file is called damaged for its window", f'{DATA}/prepare/byte_stream.cc',
             '!= ZSTD_error_frameParameter_windowTooLarge', '!= ZSTD_error_no_error', READERS, 'lines'),
    Mutation("llm.c's tokens take the place of a Megatron index's", f'{DATA}/store/convert.cc',
             'if ((path == megatron.tokens || path == megatron.index) &&', 'if (path == megatron.index &&',
             f'//{DATA}/store:store_test', 'files'),
    Mutation('prepare goes on in the middle of a document as at its begin', f'{DATA}/prepare/journal.cc',
             'journal.position.is_in_document ? 1 : 0', 'journal.position.is_in_document ? 0 : 0', JOURNALS, 'resume'),
    Mutation('a journal that was changed is read', f'{DATA}/prepare/journal.cc',
             'checksum == absl::string_view::npos ||\n      text.substr(checksum) !=\n'
             '          absl::StrCat(kChecksum, ChecksumOf(text.substr(0, checksum)), "\\n") ||',
             'checksum == absl::string_view::npos ||', JOURNALS, 'resume'),
    Mutation('bytes without a character are decoded one by one', f'{TOKENIZER}/sentencepiece/decoder.cc',
             'has_begun = true;\n      continue;\n    }\n    FlushBytes', 'has_begun = true;\n    }\n    FlushBytes', f'//{TOKENIZER}/sentencepiece:model_test '
             f'//{TOKENIZER}/sentencepiece:golden_test', 'ids'),
    Mutation('spaces go with the new line that follows them', f'{TOKENIZER}/scanners.cc',
             'if (lines && after_newline > at) return after_newline;', 'if (lines && after_newline > at) return end;',
             f'//{TOKENIZER}:scanners_test', 'ids'),
    Mutation('a compact vocabulary needs tokens for bytes that no token has', f'{TOKENIZER}/compact_tokenizer.cc',
             'if (ids[byte] != kNone || holders[byte] == kNone) continue;', 'if (ids[byte] != kNone) continue;',
             f'//{TOKENIZER}:compact_tokenizer_test', 'ids'),
    Mutation("added tokens of tokenizer_config.json do not count", f'{TOKENIZER}/json/added_tokens.cc',
             'changed = added.Add(token, vocabulary);', 'changed = token.content.empty() ? added.Add(token, vocabulary) : nullptr;', JSONS, 'ids'),
    Mutation('a config that leaves out "special" gives another fingerprint', f'{TOKENIZER}/json/added_tokens.cc',
             '    added.special = true;', '', JSONS, 'ids'),
    Mutation('add_bos_token counts for classes that do not heed it', f'{TOKENIZER}/json/post_processor.cc',
             'if (!IsHeeding(config.tokenizer_class))', 'if (!IsHeeding(config.tokenizer_class) && frame == nullptr)', JSONS, 'ids'),
    Mutation("marks that Hugging Face's library does not know change places", f'{TOKENIZER}/json/unicode_forms.cc',
             'static_cast<char32_t>(code)) ? 0 : known;', 'static_cast<char32_t>(code)) ? known : known;', JSONS, 'ids'),
    Mutation("Cohere's digits are grouped before a word as well", f'{TOKENIZER}/scanners.cc',
             'IsWordOfOniguruma(CharacterAt(text, end).code)', 'IsDecimalDigit(CharacterAt(text, end).code)', f'//{TOKENIZER}:scanners_test', 'ids'),
]
