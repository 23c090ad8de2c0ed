/* Error names and texts, and each thread's last error (HIP 7 rules: successes do not clear it). */
#include "state.h"

typedef struct {
    hipError_t error;
    const char *name, *text;
} ErrorText;

#define ERROR(code, text) {code, #code, text}

static const ErrorText texts[] = {
    ERROR(hipSuccess, "no error"),
    ERROR(hipErrorInvalidValue, "invalid argument"),
    ERROR(hipErrorOutOfMemory, "out of memory"),
    ERROR(hipErrorNotInitialized, "initialization error"),
    ERROR(hipErrorDeinitialized, "driver shutting down"),
    ERROR(hipErrorInvalidConfiguration, "invalid configuration argument"),
    ERROR(hipErrorInvalidDevicePointer, "invalid device pointer"),
    ERROR(hipErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    ERROR(hipErrorInsufficientDriver, "driver version is insufficient for runtime version"),
    ERROR(hipErrorMissingConfiguration, "__global__ function call is not configured"),
    ERROR(hipErrorInvalidDeviceFunction, "invalid device function"),
    ERROR(hipErrorNoDevice, "no ROCm-capable device is detected"),
    ERROR(hipErrorInvalidDevice, "invalid device ordinal"),
    ERROR(hipErrorInvalidImage, "device kernel image is invalid"),
    ERROR(hipErrorInvalidContext, "invalid device context"),
    ERROR(hipErrorMapFailed, "mapping of buffer object failed"),
    ERROR(hipErrorNoBinaryForGpu, "no kernel image is available for execution on the device"),
    ERROR(hipErrorECCNotCorrectable, "uncorrectable ECC error encountered"),
    ERROR(hipErrorInvalidKernelFile, "invalid kernel file"),
    ERROR(hipErrorInvalidSource, "device kernel image is invalid"),
    ERROR(hipErrorFileNotFound, "file not found"),
    ERROR(hipErrorSharedObjectSymbolNotFound, "shared object symbol not found"),
    ERROR(hipErrorSharedObjectInitFailed, "shared object initialization failed"),
    ERROR(hipErrorOperatingSystem, "OS call failed or operation not supported on this OS"),
    ERROR(hipErrorInvalidHandle, "invalid resource handle"),
    ERROR(hipErrorIllegalState, "the operation cannot be performed in the present state"),
    ERROR(hipErrorNotFound, "named symbol not found"),
    ERROR(hipErrorNotReady, "device not ready"),
    ERROR(hipErrorIllegalAddress, "an illegal memory access was encountered"),
    ERROR(hipErrorLaunchOutOfResources, "too many resources requested for launch"),
    ERROR(hipErrorLaunchTimeOut, "the launch timed out and was terminated"),
    ERROR(hipErrorPeerAccessAlreadyEnabled, "peer access is already enabled"),
    ERROR(hipErrorPeerAccessNotEnabled, "peer access has not been enabled"),
    ERROR(hipErrorContextIsDestroyed, "context is destroyed"),
    ERROR(hipErrorAssert, "device-side assert triggered"),
    ERROR(hipErrorHostMemoryAlreadyRegistered,
          "part or all of the requested memory range is already mapped"),
    ERROR(hipErrorHostMemoryNotRegistered,
          "pointer does not correspond to a registered memory region"),
    ERROR(hipErrorLaunchFailure, "unspecified launch failure"),
    ERROR(hipErrorCooperativeLaunchTooLarge, "too many blocks in cooperative launch"),
    ERROR(hipErrorNotSupported, "operation not supported"),
    ERROR(hipErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    ERROR(hipErrorStreamCaptureInvalidated,
          "operation failed due to a previous error during capture"),
    ERROR(hipErrorStreamCaptureMerge,
          "operation would result in a merge of separate capture sequences"),
    ERROR(hipErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began"),
    ERROR(hipErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    ERROR(hipErrorStreamCaptureIsolation,
          "dependency created on uncaptured work in another stream"),
    ERROR(hipErrorStreamCaptureImplicit,
          "operation would make the legacy stream depend on a capturing blocking stream"),
    ERROR(hipErrorCapturedEvent,
          "operation not permitted on an event last recorded in a capturing stream"),
    ERROR(hipErrorStreamCaptureWrongThread,
          "attempt to terminate a thread-local capture sequence from another thread"),
    ERROR(hipErrorUnknown, "unknown error"),
    ERROR(hipErrorInvalidClusterSize, "invalid cluster size"),
};

static const ErrorText *find(hipError_t error) {
    const unsigned count = sizeof texts / sizeof texts[0];
    const ErrorText *unknown = NULL;
    for (unsigned i = 0; i < count; i++) {
        if (texts[i].error == error) {
            return &texts[i];
        }
        if (texts[i].error == hipErrorUnknown) {
            unknown = &texts[i];
        }
    }
    return unknown;
}

static void count(ApiSite *site, const char *name) {
    api_enter_always(site, name);
    state_unlock();
}

HIP_EXPORT const char *hipGetErrorName(hipError_t error) {
    static ApiSite site;
    count(&site, __func__);
    return find(error)->name;
}

HIP_EXPORT const char *hipGetErrorString(hipError_t error) {
    static ApiSite site;
    count(&site, __func__);
    return find(error)->text;
}

HIP_EXPORT hipError_t hipDrvGetErrorName(hipError_t error, const char **text) {
    static ApiSite site;
    count(&site, __func__);
    if (text == NULL) {
        return hipErrorInvalidValue;
    }
    *text = find(error)->name;
    return hipSuccess;
}

HIP_EXPORT hipError_t hipDrvGetErrorString(hipError_t error, const char **text) {
    static ApiSite site;
    count(&site, __func__);
    if (text == NULL) {
        return hipErrorInvalidValue;
    }
    *text = find(error)->text;
    return hipSuccess;
}

HIP_EXPORT hipError_t hipGetLastError(void) {
    static ApiSite site;
    count(&site, __func__);
    return take_last_error();
}

HIP_EXPORT hipError_t hipPeekAtLastError(void) {
    static ApiSite site;
    count(&site, __func__);
    return peek_last_error();
}
