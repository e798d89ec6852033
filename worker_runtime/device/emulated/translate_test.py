"""translate.py's output for CUDA's own syntax, and the syntax that it refuses."""

import unittest

from translate import Untranslatable, translate


class TranslateTest(unittest.TestCase):

    def test_a_shared_variable_becomes_one_of_the_block(self) -> None:
        self.assertIn('auto& sums = ::convene::emulated::SharedVariable<float[2][kWarp]>([]', translate('__shared__ float sums[2][kWarp];'))
        self.assertIn('auto& flag = ::convene::emulated::SharedVariable<unsigned int>([]', translate('__shared__ unsigned int flag;'))

    def test_dynamic_shared_memory_becomes_a_pointer(self) -> None:
        self.assertEqual(translate('extern __shared__ float shared[];'),
                         'float* const shared = ::convene::emulated::DynamicShared<float>();')

    def test_a_launch_becomes_a_call(self) -> None:
        self.assertEqual(translate('Kernel<T, 4><<<dim3(a, b), 32,\n  bytes, stream>>>(x, y);'),
                         '::convene::emulated::Chevron(Kernel<T, 4>, dim3(a, b), 32,\n  bytes, stream)(x, y);')

    def test_launch_bounds_are_checked_at_the_first_line(self) -> None:
        for text in ('__global__ void __launch_bounds__(kA *\n kB)\n Step(const A<T> a, int (*f)(int)) { go(); }',
                     '__global__ __launch_bounds__(kA *\n kB) void\n Step(const A<T> a, int (*f)(int)) { go(); }'):
            translated = translate(text)
            self.assertIn('{ ::convene::emulated::CheckLaunchBounds(kA * kB); go(); }', translated)
            self.assertEqual(translated.count('\n'), text.count('\n'))

    def test_known_ptx_becomes_a_function(self) -> None:
        self.assertEqual(translate('asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * kLog2E));'),
                         'result = ::convene::emulated::Ex2ApproxFtz(x * kLog2E);')

    def test_what_is_not_known_is_refused(self) -> None:
        for text in ('asm("nanosleep.u32 %0;" : : "r"(ns));', 'asm("lg2.approx.f32 %0, %1;" : "=f"(r) : "f"(x));',
                     '__shared__ float x = 1;'):
            with self.assertRaises(Untranslatable):
                translate(text)

    def test_a_branch_on_the_architecture_is_refused_with_its_line(self) -> None:
        with self.assertRaisesRegex(Untranslatable, '__CUDA_ARCH__ near line 2 .* run other code than the GPU'):
            translate('int x;\n#if __CUDA_ARCH__ >= 900\nint y;\n#endif')
        self.assertEqual(translate('// __CUDA_ARCH__').strip(), '')

    def test_comments_are_no_code(self) -> None:
        self.assertEqual(translate('// one __shared__ array\nint x;').strip(), 'int x;')


if __name__ == '__main__':
    unittest.main()
